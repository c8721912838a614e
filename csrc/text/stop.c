/* stop.c: an Aho-Corasick automaton with a complete transition table, so that a byte is one
 * look-up.
 *
 * State = longest suffix of the stream that is a prefix of some string; state 0 is the empty one.
 * The table has a column per byte *class* (a class per byte value that occurs in some string, class
 * 0 for all others), which keeps it small. `match[s]` is the string that ends in s, `shorter[s]`
 * the next state on the failure path where a string ends: following it lists every match that ends
 * at this byte, longest (smallest start) first. */
#include "csrc/text/stop.h"

struct mm_stop_matcher {
    int32_t n_class, n_state;
    uint8_t class_of[256];
    int32_t *next;    /* [n_state, n_class] */
    int32_t *match;   /* [n_state] string that ends here (lowest index), -1 none */
    int32_t *depth;   /* [n_state] bytes of the state's prefix */
    int32_t *shorter; /* [n_state] nearest proper suffix state with a match, 0 none */
    int32_t state;
    int64_t pos; /* bytes seen */
};

/* Class of every byte. With all 256 values in use there is no "other" byte, and class 0 is one of
 * them. */
static void number_classes(mm_stop_matcher *m, const uint8_t *bytes, int64_t n)
{
    bool used[256] = {false};
    int n_used = 0;
    for (int64_t i = 0; i < n; i++) {
        n_used += !used[bytes[i]];
        used[bytes[i]] = true;
    }
    int next_class = n_used < 256 ? 1 : 0;
    for (int b = 0; b < 256; b++)
        m->class_of[b] = used[b] ? (uint8_t)next_class++ : 0;
    m->n_class = next_class;
}

static int32_t *edge(mm_stop_matcher *m, int32_t state, uint8_t byte)
{
    return &m->next[(int64_t)state * m->n_class + m->class_of[byte]];
}

/* The trie of the strings; 0 in the table means "no edge yet" (no edge of a trie leads to the
 * root). */
static void insert(mm_stop_matcher *m, const uint8_t *s, int32_t n, int32_t index)
{
    int32_t state = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t *e = edge(m, state, s[i]);
        if (*e == 0) {
            *e = m->n_state++;
            m->match[*e] = -1;
            m->depth[*e] = i + 1;
        }
        state = *e;
    }
    if (m->match[state] < 0)
        m->match[state] = index;
}

/* Breadth first, so that the failure state of a state (shorter than it) is complete when
 * it is needed. A missing edge of s becomes the edge of fail(s). queue and fail are
 * scratch, [n_state]. */
static void complete(mm_stop_matcher *m, int32_t *queue, int32_t *fail)
{
    int32_t head = 0, tail = 0;
    fail[0] = 0;
    for (int32_t c = 0; c < m->n_class; c++) {
        const int32_t child = m->next[c];
        if (child != 0) {
            fail[child] = 0;
            queue[tail++] = child;
        }
    }
    while (head < tail) {
        const int32_t s = queue[head++];
        const int32_t f = fail[s];
        m->shorter[s] = m->match[f] >= 0 ? f : m->shorter[f];
        for (int32_t c = 0; c < m->n_class; c++) {
            int32_t *e = &m->next[(int64_t)s * m->n_class + c];
            const int32_t over = m->next[(int64_t)f * m->n_class + c];
            if (*e == 0) {
                *e = over;
            } else {
                fail[*e] = over;
                queue[tail++] = *e;
            }
        }
    }
}

mm_status mm_stop_matcher_open(mm_stop_matcher **out, const uint8_t *bytes, const int32_t *offset,
                               int32_t n_string)
{
    *out = NULL;
    for (int32_t i = 0; i < n_string; i++) {
        if (offset[i + 1] <= offset[i])
            return MM_FAIL_PARAM(MM_E_INVALID, "stop", i, "stop string %d is empty", i);
    }
    const int64_t n_byte = n_string > 0 ? offset[n_string] - offset[0] : 0;
    mm_stop_matcher *m = calloc(1, sizeof *m);
    int32_t *scratch = NULL;
    mm_status st = MM_OK;
    if (m == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for a stop matcher");
    number_classes(m, n_byte > 0 ? bytes + offset[0] : NULL, n_byte);
    const size_t n_max = (size_t)n_byte + 1;
    m->next = calloc(n_max * (size_t)m->n_class, sizeof *m->next);
    m->match = calloc(n_max * 3, sizeof *m->match);
    scratch = calloc(n_max * 2, sizeof *scratch);
    if (m->next == NULL || m->match == NULL || scratch == NULL) {
        st = MM_FAIL_PARAM(MM_E_NOMEM, "stop", -1, "no host memory for stop strings of %lld bytes",
                           (long long)n_byte);
        goto done;
    }
    m->depth = m->match + n_max;
    m->shorter = m->depth + n_max;
    m->match[0] = -1;
    m->n_state = 1;
    for (int32_t i = 0; i < n_string; i++)
        insert(m, bytes + offset[i], offset[i + 1] - offset[i], i);
    complete(m, scratch, scratch + n_max);
    *out = m;
    m = NULL;
done:
    free(scratch);
    mm_stop_matcher_close(m);
    return st;
}

void mm_stop_matcher_close(mm_stop_matcher *m)
{
    if (m == NULL)
        return;
    free(m->next);
    free(m->match);
    free(m);
}

bool mm_stop_matcher_push(mm_stop_matcher *m, const uint8_t *bytes, int64_t n, bool counts,
                          const mm_think *outside, mm_stop_match *out)
{
    bool found = false;
    for (int64_t i = 0; i < n; i++) {
        m->state = *edge(m, m->state, bytes[i]);
        m->pos++;
        if (!counts)
            continue;
        for (int32_t s = m->match[m->state] >= 0 ? m->state : m->shorter[m->state]; s != 0;
             s = m->shorter[s]) {
            const int64_t begin = m->pos - m->depth[s];
            if (found && begin > out->begin)
                break; /* the rest of the path begins later still */
            if (outside != NULL && mm_think_covers(outside, begin, m->pos))
                continue;
            *out = (mm_stop_match){.index = m->match[s], .begin = begin, .end = m->pos};
            found = true;
            break;
        }
    }
    return found;
}
