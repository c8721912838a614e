/* request.c: a request's memory. All arrays are carved from one allocation whose layout is computed
 * first; beyond a megabyte it is mapped, so that a generous max_tokens costs address space, not
 * memory. */
#include <sys/mman.h>

#include "csrc/engine/request_deck.h"
#include "csrc/model/batch.h"

#define MAP_FROM ((size_t)1 << 20)

void mm_request_params_init(mm_request_params *p)
{
    *p = (mm_request_params){
        .size = sizeof *p,
        .max_tokens = 16,
        .temperature = 1.0f,
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .n_logprob = -1,
        .n_prompt_logprob = -1,
        .prompt_logprob_start = 1,
        .think_close_token = -1,
        .think_budget = -1,
    };
}

/* ---------------------------------------------------------------- layout */

typedef struct carve {
    uint8_t *base; /* NULL: only the size is wanted */
    size_t used;
} carve;

static void *take(carve *c, int64_t n, size_t each)
{
    if (n <= 0)
        return NULL;
    void *at = c->base == NULL ? NULL : c->base + c->used;
    c->used += ((size_t)n * each + 63) & ~(size_t)63;
    return at;
}

static void *copy(carve *c, const void *src, int64_t n, size_t each)
{
    void *at = take(c, n, each);
    if (at != NULL)
        memcpy(at, src, (size_t)n * each);
    return at;
}

/* Called twice: without a base for the size, with it to fill in the pointers. */
static void lay_out(mm_request *r, carve *c, const mm_request_params *p)
{
    mm_request_params *q = &r->p;
    r->token = take(c, (int64_t)r->n_prompt + r->out_cap, sizeof *r->token);
    r->page = take(c, r->page_cap, sizeof *r->page);
    r->prompt_key = take(c, r->n_prompt_key, sizeof *r->prompt_key);
    q->bias_token = copy(c, p->bias_token, p->n_bias, sizeof *p->bias_token);
    q->bias_value = copy(c, p->bias_value, p->n_bias, sizeof *p->bias_value);
    q->bad_offset =
        p->n_bad > 0 ? copy(c, p->bad_offset, p->n_bad + 1, sizeof *p->bad_offset) : NULL;
    q->bad_token =
        p->n_bad > 0 ? copy(c, p->bad_token, p->bad_offset[p->n_bad], sizeof *p->bad_token) : NULL;
    q->stop_token = copy(c, p->stop_token, p->n_stop_token, sizeof *p->stop_token);
    q->forced_token = copy(c, p->forced_token, p->n_forced, sizeof *p->forced_token);
    q->logprob_token = copy(c, p->logprob_token, p->n_logprob_token, sizeof *p->logprob_token);
    q->prompt_logprob_token = copy(c, p->prompt_logprob_token, p->n_prompt_logprob_token,
                                   sizeof *p->prompt_logprob_token);
    r->ban = take(c, r->n_ban, sizeof *r->ban);
    r->allowed = p->n_allowed > 0 ? take(c, r->mask_words, sizeof *r->allowed) : NULL;
    r->mask = p->want_mask ? take(c, r->mask_words, sizeof *r->mask) : NULL;
    r->mask_in = p->want_mask ? take(c, r->mask_words, sizeof *r->mask_in) : NULL;
    const int64_t n_entry = (int64_t)r->out_cap * r->width,
                  n_prompt_entry = (int64_t)r->n_score * r->prompt_width;
    r->out_id = take(c, n_entry, sizeof *r->out_id);
    r->out_logprob = take(c, n_entry, sizeof *r->out_logprob);
    r->out_rank = take(c, n_entry, sizeof *r->out_rank);
    r->out_sampling =
        p->want_sampling_logprob ? take(c, r->out_cap, sizeof *r->out_sampling) : NULL;
    r->prompt_id = take(c, n_prompt_entry, sizeof *r->prompt_id);
    r->prompt_logprob = take(c, n_prompt_entry, sizeof *r->prompt_logprob);
    r->prompt_rank = take(c, n_prompt_entry, sizeof *r->prompt_rank);
    r->error = take(c, 1, sizeof *r->error);
}

static mm_status block_open(mm_request *r, size_t n_bytes)
{
    if (n_bytes >= MAP_FROM) {
        void *at = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        r->block = at == MAP_FAILED ? NULL : at;
    } else {
        r->block = calloc(1, n_bytes);
    }
    r->block_bytes = n_bytes;
    if (r->block == NULL)
        return MM_FAIL_PARAM(
            MM_E_NOMEM, "max_tokens", -1,
            "no host memory for a request's results (%.1f MB): lower max_tokens or logprobs",
            (double)n_bytes / 1e6);
    return MM_OK;
}

/* ---------------------------------------------------------------- contents */

static void fill_masks(mm_request *r, const mm_request_params *p, const mm_request_limits *lim)
{
    int32_t n = 0;
    for (int32_t i = 0; i < lim->n_eos && !p->ignore_eos; i++)
        if (r->n_ban > 0)
            r->ban[n++] = lim->eos[i];
    for (int32_t i = 0; i < p->n_stop_token; i++)
        if (r->n_ban > 0)
            r->ban[n++] = p->stop_token[i];
    MM_ASSERT(n == r->n_ban);
    for (int32_t i = 0; i < p->n_allowed; i++)
        r->allowed[p->allowed_token[i] / 32] |= 1u << (p->allowed_token[i] % 32);
    r->p.allowed_token = NULL; /* the bits say it all */
}

static void fill_prefix(mm_request *r, const mm_request_params *p, const mm_request_limits *lim,
                        uint64_t owner)
{
    /* Where the shared cache is off or not to be read, a group still shares its own prefill under a
     * private root. */
    const bool is_private = p->group != 0 && (!lim->has_prefix_cache || p->skip_prefix_read);
    r->root = (mm_prefix_root){.weight_version = lim->weight_version,
                               .salt = is_private ? p->group : p->salt,
                               .owner = is_private ? owner : 0,
                               .is_private = is_private};
    const bool uses_cache = p->trace == NULL;
    r->publishes = uses_cache && (lim->has_prefix_cache || is_private);
    r->reads_prefix = uses_cache && ((lim->has_prefix_cache && !p->skip_prefix_read) || is_private);
    mm_prefix_key key = mm_prefix_begin(lim->secret, &r->root);
    r->last_key = key;
    for (int32_t i = 0; i < r->n_prompt_key && uses_cache; i++) {
        key = mm_prefix_next(lim->secret, key, r->token + (int64_t)i * MM_PAGE, NULL);
        r->prompt_key[i] = key;
    }
}

static uint8_t asks_of(const mm_request *r)
{
    const mm_request_params *p = &r->p;
    return (uint8_t)((p->trace != NULL ? MM_ASKS_TRACE : 0) | (p->want_mask ? MM_ASKS_MASKS : 0) |
                     (p->n_forced > 0 || p->think_budget >= 0 ? MM_ASKS_FORCED : 0) |
                     (p->think_start != MM_THINK_OFF ? MM_ASKS_THINKING : 0) |
                     (p->n_stop > 0 ? MM_ASKS_STRINGS : 0) |
                     (p->n_stop_token > 0 || p->rep_min_count > 0 ? MM_ASKS_ENDS : 0) |
                     (r->width > 0 || p->want_sampling_logprob ? MM_ASKS_ENTRIES : 0));
}

static uint8_t draw_of(const mm_request_params *p)
{
    if (p->temperature < 1e-5f)
        return MM_DRAW_GREEDY;
    return p->top_k <= 0 && p->top_p >= 1.0f ? MM_DRAW_UNFILTERED : MM_DRAW_ANY;
}

static void fill_output(mm_request *r)
{
    r->out = (mm_output){
        .stop_index = -1,
        .token = r->token + r->n_prompt,
        .logprob_id = r->out_id,
        .logprob = r->out_logprob,
        .logprob_rank = r->out_rank,
        .logprob_width = r->width,
        .sampling_logprob = r->out_sampling,
        .prompt_id = r->prompt_id,
        .prompt_logprob = r->prompt_logprob,
        .prompt_rank = r->prompt_rank,
        .prompt_width = r->prompt_width,
        .n_prompt = r->n_prompt,
        .want_mask_token = -1,
        .t_submit = mm_now(),
        .weight_version = r->root.weight_version,
        .error_message = "",
        .error_param = "",
        .error_index = -1,
    };
    r->pub = r->out;
}

mm_status mm_request_open(mm_request **out, const mm_request_params *p,
                          const mm_request_limits *lim, uint64_t owner)
{
    *out = NULL;
    MM_TRY(mm_request_check(p, lim));
    mm_status st = MM_OK;
    mm_request *r = mm_request_take();
    if (r == NULL)
        return MM_FAIL(MM_E_NOMEM, "no host memory for a request");
    r->p = *p;
    r->p.prompt = NULL; /* token[] has it */
    r->owner = owner;
    r->n_prompt = p->n_prompt;
    r->out_cap = (int32_t)mm_min_i64(p->max_tokens, lim->max_len - p->n_prompt);
    r->page_cap = (int32_t)mm_ceil_div((int64_t)r->n_prompt + r->out_cap, MM_PAGE);
    r->mask_words = (int32_t)mm_ceil_div(lim->config->n_vocab, 32);
    r->width = p->n_logprob < 0 ? 0 : 1 + p->n_logprob + p->n_logprob_token;
    r->prompt_width =
        p->n_prompt_logprob < 0 ? 0 : 1 + p->n_prompt_logprob + p->n_prompt_logprob_token;
    r->n_score = p->n_prompt_logprob < 0 ? 0 : p->n_prompt - p->prompt_logprob_start;
    r->n_ban = p->min_tokens > 0 ? (p->ignore_eos ? 0 : lim->n_eos) + p->n_stop_token : 0;
    r->n_prompt_key = p->n_prompt / MM_PAGE;
    r->eos_from =
        p->ignore_eos ? INT32_MAX : (int32_t)mm_min_i64(p->min_tokens + (int64_t)1, INT32_MAX);
    mm_request_notify_every(r, p->notify_tokens);
    r->draw = draw_of(p);
    r->asks = asks_of(r);
    r->slot = r->heap_index = r->run_index = r->i_mask = r->i_mask_in = -1;

    carve size = {0};
    lay_out(r, &size, p);
    st = block_open(r, size.used);
    if (st != MM_OK)
        goto done;
    carve c = {.base = r->block};
    lay_out(r, &c, p);
    memcpy(r->token, p->prompt, (size_t)p->n_prompt * sizeof *r->token);
    fill_masks(r, p, lim);
    fill_prefix(r, p, lim, owner);
    fill_output(r);
    st = mm_think_init(&r->think, p->think_start, p->think_open, p->n_think_open, p->think_close,
                       p->n_think_close);
    if (st == MM_OK && p->n_stop > 0)
        st = mm_stop_matcher_open(&r->stop, p->stop_bytes, p->stop_offset, p->n_stop);
    if (st == MM_OK)
        st = mm_repeat_open(&r->repeat, p->rep_min_size, p->rep_max_size, p->rep_min_count);
    r->p.stop_bytes = r->p.think_open = r->p.think_close = NULL;
    r->p.stop_offset = NULL;
done:
    if (st != MM_OK) {
        mm_request_close(r);
        return st;
    }
    *out = r;
    return MM_OK;
}

void mm_request_close(mm_request *r)
{
    if (r == NULL)
        return;
    mm_stop_matcher_close(r->stop);
    mm_repeat_close(&r->repeat);
    if (r->block_bytes >= MAP_FROM && r->block != NULL)
        munmap(r->block, r->block_bytes);
    else
        free(r->block);
    mm_request_give(r);
}
