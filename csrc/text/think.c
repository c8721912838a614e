/* think.c: the state machine of think.h. Two things need care.
 *
 * Held bytes. In LEAD, LEAD_IN and AFTER the text so far is blank* and a prefix of a mark. When the
 * next byte breaks the prefix, that text belongs to the next phase and the bytes of the prefix
 * (which are known: they are the mark's) run through it again, since another mark may begin inside
 * them. In THINK and CONTENT the matcher is plain KMP.
 *
 * Counting. A token counts once any of its bytes is known to be reasoning. Tokens wholly made of
 * held bytes wait: in LEAD_IN those of blanks are only counted (n_blank, they share one fate),
 * those that touch the mark prefix are listed (held, at most one per byte of the mark). */
#include "csrc/text/think.h"

/* The one-byte characters that Python's str.isspace() accepts. A wider blank (U+3000) before a mark
 * is taken as text: the span is the same, only its leading blanks are not counted as dropped. */
static bool is_blank(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
}

static mm_status mark_init(mm_think_mark *m, const char *param, const uint8_t *bytes, int32_t n)
{
    if (n < 1 || n > MM_MAX_MARK || bytes == NULL)
        return MM_FAIL_PARAM(MM_E_INVALID, param, -1,
                             "%s has %d bytes; a thinking mark has 1 to %d", param, n, MM_MAX_MARK);
    if (is_blank(bytes[0]))
        return MM_FAIL_PARAM(MM_E_INVALID, param, -1, "%s begins with a blank", param);
    memcpy(m->byte, bytes, (size_t)n);
    m->n = n;
    m->fail[0] = 0;
    for (int32_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && m->byte[i] != m->byte[k])
            k = m->fail[k - 1];
        k += m->byte[i] == m->byte[k];
        m->fail[i] = (uint8_t)k;
    }
    return MM_OK;
}

mm_status mm_think_init(mm_think *t, mm_think_state start, const uint8_t *open, int32_t n_open,
                        const uint8_t *close, int32_t n_close)
{
    *t = (mm_think){.span_begin = INT64_MAX, .span_end = INT64_MAX};
    if (start == MM_THINK_OFF)
        return MM_OK;
    MM_TRY(mark_init(&t->open, "think_open", open, n_open));
    MM_TRY(mark_init(&t->close, "think_close", close, n_close));
    if (n_open == n_close && memcmp(open, close, (size_t)n_open) == 0)
        return MM_FAIL_PARAM(MM_E_INVALID, "think_close", -1,
                             "think_open and think_close are the same %d bytes", n_open);
    if (start == MM_THINK_ENABLED) {
        t->phase = MM_PHASE_LEAD_IN;
        t->span_begin = 0;
    } else {
        t->phase = MM_PHASE_LEAD;
    }
    return MM_OK;
}

static int32_t kmp_next(const mm_think_mark *m, int32_t k, uint8_t c)
{
    while (k > 0 && m->byte[k] != c)
        k = m->fail[k - 1];
    return k + (m->byte[k] == c);
}

static void enter(mm_think *t, mm_think_phase phase)
{
    t->phase = phase;
    t->blanks_over = false;
    t->n_open = t->n_close = 0;
}

/* The span begins; its text begins at text_begin (the opener, if any, lies before). */
static void enter_think(mm_think *t, int64_t span_begin, int64_t text_begin)
{
    enter(t, MM_PHASE_THINK);
    t->span_begin = span_begin;
    t->text_begin = t->text_end = text_begin;
}

static void step(mm_think *t, uint8_t c, int64_t end);

/* One byte of LEAD, LEAD_IN or AFTER; `end` is the position behind it. */
static void step_lead(mm_think *t, uint8_t c, int64_t end)
{
    const bool opens = t->phase != MM_PHASE_AFTER, closes = t->phase != MM_PHASE_LEAD_IN;
    if (!t->blanks_over && is_blank(c))
        return;
    /* bytes of the prefix so far */
    const int32_t k = t->n_open > t->n_close ? t->n_open : t->n_close;
    const bool open_goes_on =
        opens && (t->blanks_over ? t->n_open == k : true) && t->open.byte[k] == c;
    const bool close_goes_on =
        closes && (t->blanks_over ? t->n_close == k : true) && t->close.byte[k] == c;
    if (open_goes_on || close_goes_on) {
        t->blanks_over = true;
        t->n_open = open_goes_on ? k + 1 : 0;
        t->n_close = close_goes_on ? k + 1 : 0;
        if (t->n_open == t->open.n) {
            enter_think(t, t->phase == MM_PHASE_LEAD_IN ? 0 : t->lead_end, end);
        } else if (t->n_close == t->close.n) {
            if (t->phase == MM_PHASE_LEAD)
                t->lead_end = end;
            else
                t->span_end = end;
            enter(t, t->phase);
        }
        return;
    }
    /* No mark. What was held, and this byte, is text of the next phase. */
    const mm_think_mark *mark = t->n_open >= t->n_close ? &t->open : &t->close;
    if (t->phase == MM_PHASE_LEAD_IN)
        enter_think(t, 0, 0);
    else
        enter(t, t->phase == MM_PHASE_LEAD ? MM_PHASE_CONTENT : MM_PHASE_DONE);
    for (int32_t i = 0; i < k; i++)
        step(t, mark->byte[i], end - k + i);
    step(t, c, end);
}

static void step_text(mm_think *t, uint8_t c, int64_t end)
{
    if (t->phase == MM_PHASE_CONTENT) {
        t->n_open = kmp_next(&t->open, t->n_open, c);
        if (t->n_open == t->open.n)
            enter_think(t, end - t->open.n, end);
    } else if (t->phase == MM_PHASE_THINK) {
        t->n_close = kmp_next(&t->close, t->n_close, c);
        t->text_end = end - t->n_close;
        if (t->n_close == t->close.n) {
            t->span_end = end;
            enter(t, MM_PHASE_AFTER);
        }
    }
}

/* Recursion through step_lead ends: it only happens when the phase moves on, and no phase comes
 * back. */
static void step(mm_think *t, uint8_t c, int64_t end)
{
    if (t->phase == MM_PHASE_LEAD || t->phase == MM_PHASE_LEAD_IN || t->phase == MM_PHASE_AFTER)
        step_lead(t, c, end);
    else
        step_text(t, c, end);
}

/* Bytes before it can change their meaning no more. */
static int64_t decided_end(const mm_think *t)
{
    switch (t->phase) {
    case MM_PHASE_LEAD_IN:
        return 0;
    case MM_PHASE_THINK:
        return t->text_end;
    default: /* what is held elsewhere never becomes reasoning of an earlier token, or only through
                CONTENT's opener */
        return t->pos;
    }
}

static bool overlaps(int64_t begin, int64_t end, int64_t lo, int64_t hi)
{
    return begin < hi && end > lo && begin < end && lo < hi;
}

/* After the bytes of a token: which waiting tokens, and this one, are known to be reasoning? */
static void count(mm_think *t, int64_t begin)
{
    const bool has_text = t->span_begin != INT64_MAX && t->phase != MM_PHASE_LEAD_IN;
    const int64_t lo = has_text ? t->text_begin : 0, hi = has_text ? t->text_end : 0;
    const int64_t decided = decided_end(t);
    if (t->n_blank > 0 && t->phase != MM_PHASE_LEAD_IN) {
        if (has_text && t->text_begin == 0)
            t->n_token += t->n_blank;
        t->n_blank = 0;
    }
    int32_t n_kept = 0;
    for (int32_t i = 0; i < t->n_held; i++) {
        const int64_t end = i + 1 < t->n_held ? t->held[i + 1] : begin;
        if (overlaps(t->held[i], end, lo, hi))
            t->n_token++;
        else if (end > decided)
            t->held[n_kept++] = t->held[i];
    }
    t->n_held = n_kept;
    if (begin == t->pos) {
        t->n_token += mm_think_is_inside(t);
    } else if (overlaps(begin, t->pos, lo, hi)) {
        t->n_token++;
    } else if (t->pos > decided) {
        if (t->phase == MM_PHASE_LEAD_IN && !t->blanks_over)
            t->n_blank++;
        else
            t->held[t->n_held++] = begin;
    }
}

void mm_think_push(mm_think *t, const uint8_t *bytes, int64_t n)
{
    if (t->phase == MM_PHASE_OFF)
        return;
    const int64_t begin = t->pos;
    for (int64_t i = 0; i < n; i++) {
        t->pos++;
        step(t, bytes[i], t->pos);
    }
    count(t, begin);
}

bool mm_think_is_inside(const mm_think *t)
{
    return t->phase == MM_PHASE_THINK || t->phase == MM_PHASE_LEAD_IN;
}

bool mm_think_covers(const mm_think *t, int64_t begin, int64_t end)
{
    if (t->phase == MM_PHASE_OFF || begin >= end)
        return false;
    return begin < t->lead_end || (begin < t->span_end && end > t->span_begin);
}

int64_t mm_think_n_token(const mm_think *t)
{
    return t->n_token + (mm_think_is_inside(t) ? t->n_blank + t->n_held : 0);
}
