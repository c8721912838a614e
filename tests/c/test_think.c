/* The tracker against a plain reading of the whole text so far, repeated after every token. */
#include "mm_random.h"
#include "mm_test.h"

#include "csrc/text/think.h"

#define OPEN "<t>"
#define CLOSE "</t>"

enum { CONTENT, REASONING, MARK };

static bool blank(char c)
{
    return c == ' ' || c == '\n';
}

/* Leading blank* mark of text[at .. n): end of the mark, or -1. */
static int lead_mark(const char *text, int n, int at, const char *mark)
{
    while (at < n && blank(text[at]))
        at++;
    const int len = (int)strlen(mark);
    return at + len <= n && memcmp(text + at, mark, (size_t)len) == 0 ? at + len : -1;
}

static int find(const char *text, int n, int at, const char *mark)
{
    const int len = (int)strlen(mark);
    for (int i = at; i + len <= n; i++) {
        if (memcmp(text + i, mark, (size_t)len) == 0)
            return i;
    }
    return -1;
}

/* kind[i] of every byte; returns whether the text ends inside the span. */
static bool read_whole(const char *text, int n, bool enabled, uint8_t *kind)
{
    int at = 0, end;
    memset(kind, CONTENT, (size_t)n);
    if (!enabled) {
        while ((end = lead_mark(text, n, at, CLOSE)) >= 0) {
            memset(kind + at, MARK, (size_t)(end - at));
            at = end;
        }
    }
    if ((end = lead_mark(text, n, at, OPEN)) >= 0) {
        memset(kind + at, MARK, (size_t)(end - at));
        at = end;
    } else if (!enabled) {
        const int opener = find(text, n, at, OPEN);
        if (opener < 0)
            return false;
        memset(kind + opener, MARK, strlen(OPEN));
        at = opener + (int)strlen(OPEN);
    }
    const int closer = find(text, n, at, CLOSE);
    memset(kind + at, REASONING, (size_t)((closer < 0 ? n : closer) - at));
    if (closer < 0)
        return true;
    memset(kind + closer, MARK, strlen(CLOSE));
    at = closer + (int)strlen(CLOSE);
    while ((end = lead_mark(text, n, at, CLOSE)) >= 0) {
        memset(kind + at, MARK, (size_t)(end - at));
        at = end;
    }
    return false;
}

static mm_status start(mm_think *t, mm_think_state state)
{
    return mm_think_init(t, state, (const uint8_t *)OPEN, 3, (const uint8_t *)CLOSE, 4);
}

/* Feeds text cut at the given token ends and compares after every token. */
static void compare(const char *text, int n, const int *cut, int n_cut, bool enabled)
{
    mm_think t;
    uint8_t kind[64];
    int empty_inside = 0;
    MM_CHECK(start(&t, enabled ? MM_THINK_ENABLED : MM_THINK_ADAPTIVE) == MM_OK);
    for (int i = 0, begin = 0; i < n_cut; begin = cut[i++]) {
        mm_think_push(&t, (const uint8_t *)text + begin, cut[i] - begin);
        const bool inside = read_whole(text, cut[i], enabled, kind);
        empty_inside += inside && cut[i] == begin;
        MM_CHECK(mm_think_is_inside(&t) == inside, "'%.*s' of '%.*s'", cut[i], text, n, text);
        int n_token = empty_inside;
        for (int j = 0, b = 0; j <= i; b = cut[j++])
            n_token += memchr(kind + b, REASONING, (size_t)(cut[j] - b)) != NULL;
        MM_CHECK(mm_think_n_token(&t) == n_token,
                 "%lld tokens instead of %d, '%.*s' of '%.*s' (enabled %d)",
                 (long long)mm_think_n_token(&t), n_token, cut[i], text, n, text, enabled);
        for (int b = 0; b < cut[i]; b++) {
            MM_CHECK(mm_think_covers(&t, b, b + 1) == (kind[b] != CONTENT),
                     "byte %d, '%.*s' of '%.*s' (enabled %d)", b, cut[i], text, n, text, enabled);
        }
    }
}

MM_TEST(test_think_matches_whole_text_for_random_cuts)
{
    static const char *const piece[] = {OPEN, CLOSE, " ",  "\n", "<",  "t",   ">",
                                        "/",  "x",   "</", "t>", "<t", "</t", "<</t>"};
    uint64_t seed = 1;
    for (int round = 0; round < 60000 && !mm_is_failed; round++) {
        char text[64];
        int n = 0, cut[64], n_cut = 0;
        const int n_piece = 1 + (int)random_below(&seed, 9);
        for (int i = 0; i < n_piece; i++) {
            const char *p = piece[random_below(&seed, (int64_t)MM_ARRAY_LEN(piece))];
            memcpy(text + n, p, strlen(p));
            n += (int)strlen(p);
        }
        for (int at = 0; at < n;) {
            at += (int)random_below(&seed, 4);
            at = at < n ? at : n;
            cut[n_cut++] = at;
            if (n_cut == 60)
                at = cut[n_cut - 1] = n;
        }
        compare(text, n, cut, n_cut, random_below(&seed, 2) == 1);
    }
}

typedef struct think_case {
    mm_think_state start;
    const char *text, *content; /* content: the bytes outside span and marks */
} think_case;

MM_TEST(test_think_reads_known_replies)
{
    static const think_case table[] = {
        {MM_THINK_ADAPTIVE, "<t>add 17 and 25</t>42", "42"},
        {MM_THINK_ADAPTIVE, "</t>Hola.", "Hola."},
        {MM_THINK_ADAPTIVE, "</t></t>Hola.", "Hola."},
        {MM_THINK_ADAPTIVE, "The tag </t> ends", "The tag </t> ends"},
        {MM_THINK_ADAPTIVE, "<t>first I list", ""},
        {MM_THINK_ADAPTIVE, "<t>\na\n</t>\n\nb", "\n\nb"},
        {MM_THINK_ADAPTIVE, "Sure. <t>check</t>Yes.", "Sure. Yes."},
        {MM_THINK_ADAPTIVE, "<t>a</t>b<t>c</t>d", "b<t>c</t>d"},
        {MM_THINK_ENABLED, "subtract 9</t>It is 6.", "It is 6."},
        {MM_THINK_ENABLED, "<t>plan B</t>go", "go"},
        {MM_THINK_ENABLED, "</t>Nothing", "Nothing"},
        {MM_THINK_ENABLED, "typed <t> here</t>Right.", "Right."},
        {MM_THINK_DISABLED, "<t>hmm</t>Blue.", "Blue."},
        {MM_THINK_ENABLED, "almost done</", ""},
        {MM_THINK_OFF, "<t>a</t>b", "<t>a</t>b"},
    };
    for (size_t i = 0; i < MM_ARRAY_LEN(table); i++) {
        mm_think t;
        char content[64] = "";
        MM_CHECK(start(&t, table[i].start) == MM_OK);
        const int64_t n = (int64_t)strlen(table[i].text);
        for (int64_t b = 0; b < n; b++)
            mm_think_push(&t, (const uint8_t *)table[i].text + b, 1);
        for (int64_t b = 0; b < n; b++) {
            if (!mm_think_covers(&t, b, b + 1))
                strncat(content, table[i].text + b, 1);
        }
        MM_CHECK(strcmp(content, table[i].content) == 0, "'%s' gave '%s'", table[i].text, content);
    }
}

MM_TEST(test_think_covers_answers_for_ranges)
{
    mm_think t;
    MM_CHECK(start(&t, MM_THINK_ADAPTIVE) == MM_OK);
    mm_think_push(&t, (const uint8_t *)"ab<t>cd</t>ef", 13); /* the span is bytes 2 .. 11 */
    MM_CHECK(!mm_think_covers(&t, 0, 2) && !mm_think_covers(&t, 11, 13));
    MM_CHECK(mm_think_covers(&t, 1, 3) && mm_think_covers(&t, 10, 12) &&
             mm_think_covers(&t, 0, 13));
    MM_CHECK(!mm_think_covers(&t, 5, 5), "an empty range touches nothing");
}

MM_TEST(test_think_refuses_bad_marks)
{
    mm_think t;
    uint8_t mark[80];
    memset(mark, 'm', sizeof mark);
    MM_CHECK(mm_think_init(&t, MM_THINK_ADAPTIVE, mark, 0, mark, 4) == MM_E_INVALID);
    MM_CHECK(strcmp(mm_error_param(), "think_open") == 0, "%s", mm_error_param());
    MM_CHECK(mm_think_init(&t, MM_THINK_ADAPTIVE, mark, 3, mark, 65) == MM_E_INVALID);
    MM_CHECK(strcmp(mm_error_param(), "think_close") == 0, "%s", mm_error_param());
    MM_CHECK(mm_think_init(&t, MM_THINK_ADAPTIVE, mark, 4, mark, 4) == MM_E_INVALID);
    MM_CHECK(mm_think_init(&t, MM_THINK_ADAPTIVE, (const uint8_t *)" x", 2, mark, 4) ==
             MM_E_INVALID);
    MM_CHECK(mm_think_init(&t, MM_THINK_ADAPTIVE, mark, 64, mark, 63) == MM_OK);
    MM_CHECK(mm_think_init(&t, MM_THINK_OFF, NULL, 0, NULL, 0) == MM_OK);
}
