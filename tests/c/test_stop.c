/* The matcher against a search of the whole text after every token. */
#include "mm_random.h"
#include "mm_test.h"

#include "csrc/text/stop.h"

#define MAX_STRING 8

typedef struct strings {
    uint8_t bytes[64];
    int32_t offset[MAX_STRING + 1];
    int32_t n;
} strings;

static strings strings_of(const char *const *text, int32_t n)
{
    strings s = {.n = n};
    for (int32_t i = 0; i < n; i++) {
        memcpy(s.bytes + s.offset[i], text[i], strlen(text[i]));
        s.offset[i + 1] = s.offset[i] + (int32_t)strlen(text[i]);
    }
    return s;
}

/* Best match that ends in text(begin, end]: smallest start, then longest, then lowest index. */
static bool search(const strings *s, const char *text, int begin, int end, const mm_think *outside,
                   mm_stop_match *out)
{
    bool found = false;
    for (int32_t i = 0; i < s->n; i++) {
        const int n = s->offset[i + 1] - s->offset[i];
        for (int e = begin + 1; e <= end; e++) {
            if (e < n || memcmp(text + e - n, s->bytes + s->offset[i], (size_t)n) != 0)
                continue;
            if (outside != NULL && mm_think_covers(outside, e - n, e))
                continue;
            if (!found || e - n < out->begin || (e - n == out->begin && e > out->end)) {
                *out = (mm_stop_match){.index = i, .begin = e - n, .end = e};
                found = true;
            }
        }
    }
    return found;
}

static void compare(uint64_t *seed)
{
    strings s = {.n = 1 + (int32_t)random_below(seed, MAX_STRING)};
    for (int32_t i = 0; i < s.n; i++) {
        const int32_t n = 1 + (int32_t)random_below(seed, 5);
        for (int32_t j = 0; j < n; j++)
            s.bytes[s.offset[i] + j] =
                (uint8_t)"abc<"[random_below(seed, random_below(seed, 2) ? 2 : 4)];
        s.offset[i + 1] = s.offset[i] + n;
    }
    char text[80];
    int n_text = 0;
    while (n_text < 70) {
        const char *piece =
            (const char *[]){"a", "b", "ab", "aab", "<", "c", "<t>", "</t>"}[random_below(seed, 8)];
        memcpy(text + n_text, piece, strlen(piece));
        n_text += (int)strlen(piece);
    }
    const bool scoped = random_below(seed, 2) == 1;
    const int min_tokens = (int)random_below(seed, 6);
    mm_think think;
    mm_stop_matcher *m;
    MM_CHECK(mm_think_init(&think, MM_THINK_ADAPTIVE, (const uint8_t *)"<t>", 3,
                           (const uint8_t *)"</t>", 4) == MM_OK);
    MM_CHECK(mm_stop_matcher_open(&m, s.bytes, s.offset, s.n) == MM_OK);
    for (int at = 0, i_token = 1; at < n_text; i_token++) {
        const int n = (int)mm_min_i64(random_below(seed, 5), n_text - at);
        mm_stop_match got = {0}, want = {0};
        mm_think_push(&think, (const uint8_t *)text + at, n);
        const bool counts = i_token > min_tokens;
        const bool found = mm_stop_matcher_push(m, (const uint8_t *)text + at, n, counts,
                                                scoped ? &think : NULL, &got);
        const bool expected = counts && search(&s, text, at, at + n, scoped ? &think : NULL, &want);
        if (found != expected || memcmp(&got, &want, sizeof got) != 0) {
            mm_stop_matcher_close(m);
            MM_CHECK(false,
                     "'%.*s' token of %d bytes: got %d %d [%lld, %lld), want %d %d [%lld, %lld)",
                     at + n, text, n, found, got.index, (long long)got.begin, (long long)got.end,
                     expected, want.index, (long long)want.begin, (long long)want.end);
        }
        at += n;
    }
    mm_stop_matcher_close(m);
}

MM_TEST(test_stop_matches_whole_search_for_random_cuts)
{
    uint64_t seed = 2;
    for (int round = 0; round < 20000 && !mm_is_failed; round++)
        compare(&seed);
}

/* Tokens "he", "llo wor", "ld": which string stops, and where. */
MM_TEST(test_stop_prefers_the_first_token_then_start_then_length)
{
    static const char *const text[] = {"wor", "lo", "o", "llo", "o w"};
    const strings s = strings_of(text, 5);
    mm_stop_matcher *m;
    mm_stop_match got;
    MM_CHECK(mm_stop_matcher_open(&m, s.bytes, s.offset, s.n) == MM_OK);
    MM_CHECK(!mm_stop_matcher_push(m, (const uint8_t *)"he", 2, true, NULL, &got));
    MM_CHECK(mm_stop_matcher_push(m, (const uint8_t *)"llo wor", 7, true, NULL, &got));
    MM_CHECK(got.index == 3 && got.begin == 2 && got.end == 5, "%d [%lld, %lld)", got.index,
             (long long)got.begin, (long long)got.end);
    mm_stop_matcher_close(m);
}

MM_TEST(test_stop_ignores_what_min_tokens_completed_but_not_what_it_began)
{
    static const char *const text[] = {"ab", "bc"};
    const strings s = strings_of(text, 2);
    mm_stop_matcher *m;
    mm_stop_match got;
    MM_CHECK(mm_stop_matcher_open(&m, s.bytes, s.offset, s.n) == MM_OK);
    MM_CHECK(!mm_stop_matcher_push(m, (const uint8_t *)"ab", 2, false, NULL, &got));
    MM_CHECK(mm_stop_matcher_push(m, (const uint8_t *)"c", 1, true, NULL, &got));
    MM_CHECK(got.index == 1 && got.begin == 1 && got.end == 3);
    mm_stop_matcher_close(m);
}

MM_TEST(test_stop_uses_every_byte_value)
{
    uint8_t bytes[256];
    const int32_t offset[] = {0, 256};
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)(255 - i);
    mm_stop_matcher *m;
    mm_stop_match got;
    MM_CHECK(mm_stop_matcher_open(&m, bytes, offset, 1) == MM_OK);
    MM_CHECK(!mm_stop_matcher_push(m, bytes, 100, true, NULL, &got));
    MM_CHECK(!mm_stop_matcher_push(m, bytes, 255, true, NULL, &got));
    MM_CHECK(mm_stop_matcher_push(m, bytes + 255, 1, true, NULL, &got));
    MM_CHECK(got.begin == 100 && got.end == 356);
    mm_stop_matcher_close(m);
}

MM_TEST(test_stop_refuses_an_empty_string_and_accepts_none)
{
    const uint8_t bytes[] = "ab";
    const int32_t offset[] = {0, 2, 2};
    mm_stop_matcher *m;
    mm_stop_match got;
    MM_CHECK(mm_stop_matcher_open(&m, bytes, offset, 2) == MM_E_INVALID && m == NULL);
    MM_CHECK(mm_error_index() == 1 && strcmp(mm_error_param(), "stop") == 0);
    MM_CHECK(mm_stop_matcher_open(&m, NULL, NULL, 0) == MM_OK);
    MM_CHECK(!mm_stop_matcher_push(m, bytes, 2, true, NULL, &got));
    mm_stop_matcher_close(m);
    mm_stop_matcher_close(NULL);
}
