/* map.h: a file of the checkpoint mapped read-only. The mapping remembers what the file was (size,
 * modification time, inode), so that whoever reads it again later can refuse a file that was
 * replaced under a running engine. */
#ifndef MM_MODEL_MAP_H
#define MM_MODEL_MAP_H
#include <sys/stat.h>

#include "csrc/base/base.h"

typedef struct mm_map {
    char *path;
    const uint8_t *data; /* page-aligned */
    int64_t n_bytes;
    dev_t device;
    ino_t inode;
    struct timespec modified;
} mm_map;

mm_status mm_map_open(mm_map *out, const char *path);
void mm_map_close(mm_map *m); /* a zeroed map is fine */
/* MM_E_IO when the file at the path is no longer the one mapped. */
mm_status mm_map_verify(const mm_map *m);
#endif
