/* map.c: read-only file mappings. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "csrc/model/map.h"

mm_status mm_map_open(mm_map *out, const char *path)
{
    *out = (mm_map){0};
    mm_status st = MM_OK;
    mm_map m = {0};
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return MM_FAIL(MM_E_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &info) != 0) {
        st = MM_FAIL(MM_E_IO, "%s: cannot stat: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        st = MM_FAIL(MM_E_IO, "%s: not a regular file", path);
        goto done;
    }
    if (info.st_size == 0) {
        st = MM_FAIL(MM_E_FORMAT, "%s: the file is empty; fetch it again", path);
        goto done;
    }
    void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        st = MM_FAIL(MM_E_IO, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size,
                     strerror(errno));
        goto done;
    }
    m = (mm_map){.path = strdup(path),
                 .data = data,
                 .n_bytes = info.st_size,
                 .device = info.st_dev,
                 .inode = info.st_ino,
                 .modified = info.st_mtim};
    if (m.path == NULL) {
        munmap(data, (size_t)info.st_size);
        st = MM_FAIL(MM_E_NOMEM, "no memory for the path of a mapping");
        goto done;
    }
    *out = m;
done:
    close(fd);
    return st;
}

void mm_map_close(mm_map *m)
{
    if (m->data != NULL)
        munmap((void *)(uintptr_t)m->data, (size_t)m->n_bytes);
    free(m->path);
    *m = (mm_map){0};
}

mm_status mm_map_verify(const mm_map *m)
{
    struct stat now;
    if (stat(m->path, &now) != 0)
        return MM_FAIL(MM_E_IO, "%s: gone since it was mapped: %s; open the engine again", m->path,
                       strerror(errno));
    if (now.st_dev != m->device || now.st_ino != m->inode)
        return MM_FAIL(MM_E_IO,
                       "%s: another file stands there since it was mapped; open the engine again",
                       m->path);
    if (now.st_size != m->n_bytes || now.st_mtim.tv_sec != m->modified.tv_sec ||
        now.st_mtim.tv_nsec != m->modified.tv_nsec)
        return MM_FAIL(
            MM_E_IO,
            "%s: changed on disk since it was mapped (%lld bytes, now %lld); open the engine again",
            m->path, (long long)m->n_bytes, (long long)now.st_size);
    return MM_OK;
}
