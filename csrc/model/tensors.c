/* tensors.c: the checked index of a checkpoint's tensors. The table comes from headers that Python
 * read, but nothing here trusts it: a wrong offset must end as a message, never as a read outside a
 * mapping. */
#include <stdio.h>

#include "csrc/model/tensors.h"
#include "csrc/tensor.h"

#define PREFIX "language_model."

const char *mm_shape_text(char text[96], int32_t rank, const int64_t *dim)
{
    int n = snprintf(text, 96, "[");
    for (int32_t i = 0; i < rank && n < 80; i++)
        n += snprintf(text + n, 96 - (size_t)n, "%s%lld", i == 0 ? "" : ", ", (long long)dim[i]);
    snprintf(text + n, 96 - (size_t)n, "]");
    return text;
}

static const char *strip_prefix(const char *name)
{
    const size_t n = strlen(PREFIX);
    return strncmp(name, PREFIX, n) == 0 ? name + n : name;
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const mm_tensor_ref *)a)->name, ((const mm_tensor_ref *)b)->name);
}

static int compare_extent(const void *a, const void *b)
{
    const mm_tensor_entry *x = *(const mm_tensor_entry *const *)a;
    const mm_tensor_entry *y = *(const mm_tensor_entry *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->n_bytes < y->n_bytes ? -1 : x->n_bytes > y->n_bytes;
}

/* Bytes that the shape asks for, -1 when the shape is impossible. */
static int64_t entry_bytes(const mm_tensor_entry *e)
{
    int64_t n = (int64_t)mm_dtype_size(e->dtype);
    if (n == 0 || e->rank < 0 || e->rank > (int32_t)MM_ARRAY_LEN(e->dim))
        return -1;
    for (int32_t i = 0; i < e->rank; i++)
        if (e->dim[i] < 0 || __builtin_mul_overflow(n, e->dim[i], &n))
            return -1;
    return n;
}

static void check_entry(mm_problems *p, const mm_tensors *t, const mm_tensor_entry *e)
{
    const mm_map *map = &t->map[e->file];
    char shape[96];
    const int64_t want = entry_bytes(e);
    if (want < 0)
        mm_problems_add(p, e->name, "%s: %s has an impossible shape or dtype", map->path, e->name);
    else if (want != e->n_bytes)
        mm_problems_add(p, e->name, "%s: %s holds %lld bytes, expected %lld for %s %s", map->path,
                        e->name, (long long)e->n_bytes, (long long)want, mm_dtype_name(e->dtype),
                        mm_shape_text(shape, e->rank, e->dim));
    else if (e->offset < 0 || e->n_bytes > map->n_bytes || e->offset > map->n_bytes - e->n_bytes)
        mm_problems_add(
            p, e->name,
            "%s: %s is %lld bytes at %lld of a file of %lld: the file is truncated, fetch it again",
            map->path, e->name, (long long)e->n_bytes, (long long)e->offset,
            (long long)map->n_bytes);
}

static mm_status check_overlap(mm_problems *p, const mm_tensors *t)
{
    const mm_tensor_entry **order = malloc((size_t)t->n_ref * sizeof *order + 1);
    if (order == NULL)
        return MM_FAIL(MM_E_NOMEM, "no memory to check %lld tensors", (long long)t->n_ref);
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_ref; i++)
        if (t->ref[i].entry->n_bytes > 0)
            order[n++] = t->ref[i].entry;
    qsort(order, (size_t)n, sizeof *order, compare_extent);
    for (int64_t i = 1; i < n; i++)
        if (order[i]->file == order[i - 1]->file &&
            order[i]->offset < order[i - 1]->offset + order[i - 1]->n_bytes)
            mm_problems_add(p, order[i]->name, "%s: %s and %s share bytes",
                            mm_tensors_path(t, order[i]), order[i - 1]->name, order[i]->name);
    free(order);
    return MM_OK;
}

static mm_status index_entries(mm_tensors *t)
{
    const mm_tensor_table *table = t->table;
    mm_problems p = {0};
    for (int64_t i = 0; i < table->n_entry; i++) {
        const mm_tensor_entry *e = &table->entry[i];
        if (e->name == NULL || e->file < 0 || e->file >= table->n_file)
            return MM_FAIL(MM_E_INVALID,
                           "tensor table: entry %lld has no name or names file %d of %d",
                           (long long)i, e->file, table->n_file);
        t->ref[i] = (mm_tensor_ref){.name = strip_prefix(e->name), .entry = e};
        check_entry(&p, t, e);
    }
    t->n_ref = table->n_entry;
    MM_TRY(mm_problems_raise(&p, MM_E_FORMAT, "checkpoint"));
    qsort(t->ref, (size_t)t->n_ref, sizeof *t->ref, compare_name);
    for (int64_t i = 1; i < t->n_ref; i++)
        if (compare_name(&t->ref[i - 1], &t->ref[i]) == 0)
            mm_problems_add(&p, t->ref[i].entry->name,
                            "%s is there twice: as %s in %s and as %s in %s; remove one",
                            t->ref[i].name, t->ref[i - 1].entry->name,
                            mm_tensors_path(t, t->ref[i - 1].entry), t->ref[i].entry->name,
                            mm_tensors_path(t, t->ref[i].entry));
    MM_TRY(check_overlap(&p, t));
    return mm_problems_raise(&p, MM_E_FORMAT, "checkpoint");
}

mm_status mm_tensors_open(mm_tensors *out, const mm_tensor_table *table)
{
    *out = (mm_tensors){.table = table};
    if (table == NULL || table->n_entry < 1 || table->n_file < 1)
        return MM_FAIL(MM_E_FORMAT, "the checkpoint has no tensors");
    mm_status st = MM_OK;
    out->map = calloc((size_t)table->n_file, sizeof *out->map);
    out->ref = calloc((size_t)table->n_entry, sizeof *out->ref);
    if (out->map == NULL || out->ref == NULL) {
        st =
            MM_FAIL(MM_E_NOMEM, "no memory for a table of %lld tensors", (long long)table->n_entry);
        goto done;
    }
    for (int32_t i = 0; i < table->n_file && st == MM_OK; i++, out->n_file = i)
        st = mm_map_open(&out->map[i], table->path[i]);
    if (st == MM_OK)
        st = index_entries(out);
done:
    if (st != MM_OK)
        mm_tensors_close(out);
    return st;
}

void mm_tensors_seal(mm_tensors *t)
{
    free(t->ref);
    t->ref = NULL;
    t->n_ref = 0;
    t->table = NULL;
}

void mm_tensors_close(mm_tensors *t)
{
    for (int32_t i = 0; i < t->n_file; i++)
        mm_map_close(&t->map[i]);
    free(t->map);
    free(t->ref);
    *t = (mm_tensors){0};
}

static mm_tensor_ref *find(const mm_tensors *t, const char *name)
{
    const mm_tensor_ref key = {.name = name};
    return bsearch(&key, t->ref, (size_t)t->n_ref, sizeof key, compare_name);
}

mm_tensor_ref *mm_tensors_take(mm_tensors *t, const char *name)
{
    mm_tensor_ref *r = find(t, name);
    if (r != NULL)
        r->is_used = true;
    return r;
}

bool mm_tensors_has(const mm_tensors *t, const char *name)
{
    return find(t, name) != NULL;
}

const uint8_t *mm_tensors_data(const mm_tensors *t, const mm_tensor_entry *e)
{
    return t->map[e->file].data + e->offset;
}

const char *mm_tensors_path(const mm_tensors *t, const mm_tensor_entry *e)
{
    return t->map[e->file].path;
}

static bool ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), m = strlen(tail);
    return n >= m && strcmp(name + n - m, tail) == 0;
}

/* Tensors of a released checkpoint that the text model has no use for. */
static bool is_known_extra(const char *name)
{
    static const char *const part[] = {"vision_tower.", "multi_modal_projector.",
                                       "patch_merge_mlp.", "mtp.", "dspark."};
    for (size_t i = 0; i < MM_ARRAY_LEN(part); i++)
        if (strstr(name, part[i]) != NULL)
            return true;
    return ends_with(name, ".rotary_emb.inv_freq");
}

int64_t mm_tensors_leftover(const mm_tensors *t, mm_problems *p)
{
    int64_t n_extra = 0;
    for (int64_t i = 0; i < t->n_ref; i++) {
        const mm_tensor_ref *r = &t->ref[i];
        if (r->is_used)
            continue;
        if (is_known_extra(r->name)) {
            n_extra++;
            continue;
        }
        char shape[96];
        mm_problems_add(p, r->entry->name,
                        "%s: unknown tensor %s %s %s: config.json describes no such part; remove "
                        "it or correct config.json",
                        mm_tensors_path(t, r->entry), r->entry->name,
                        mm_dtype_name(r->entry->dtype),
                        mm_shape_text(shape, r->entry->rank, r->entry->dim));
    }
    return n_extra;
}

mm_status mm_tensors_verify(const mm_tensors *t)
{
    for (int32_t i = 0; i < t->n_file; i++)
        MM_TRY(mm_map_verify(&t->map[i]));
    return MM_OK;
}
