/* What MM_CUDA_SO may name: files that the loader would die of, or wait on, are refused before it
 * sees them, with the variable and the remedy. The variable is read once, so every test puts its
 * own file at the one path. */
#include "mm_test.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/backend.h"

static char path[64];

__attribute__((constructor)) static void set_environment(void)
{
    snprintf(path, sizeof path, "/tmp/mm_test_backend_%ld.so", (long)getpid());
    setenv("MM_CUDA_SO", path, 1);
    unsetenv("MM_BACKEND");
    unsetenv("MM_LOG");
}

__attribute__((destructor)) static void clear(void)
{
    (void)remove(path);
}

/* This program, an ELF file of the kind of a shared library: `size` bytes of it, -1 for all; its
 * header changed by `change`. */
static bool copy_self(int64_t size, void (*change)(Elf64_Ehdr *h))
{
    FILE *in = fopen("/proc/self/exe", "rb"), *out = fopen(path, "wb");
    bool is_good = in != NULL && out != NULL;
    Elf64_Ehdr h;
    is_good = is_good && fread(&h, sizeof h, 1, in) == 1;
    if (is_good && change != NULL)
        change(&h);
    is_good = is_good && fwrite(&h, sizeof h, 1, out) == 1;
    int64_t n = (int64_t)sizeof h;
    for (int c; is_good && (size < 0 || n < size) && (c = getc(in)) != EOF; n++)
        is_good = putc(c, out) != EOF;
    if (in != NULL)
        (void)fclose(in);
    if (out != NULL)
        is_good = fclose(out) == 0 && is_good;
    return is_good && (size < 0 || n == size);
}

static void refused(const char *name, const char *says)
{
    const mm_backend_options opt = {.name = name, .n_thread = 1};
    mm_backend *b = NULL;
    const mm_status st = mm_backend_open(&b, &opt);
    const char *text = mm_error_message();
    MM_CHECK(st == MM_E_UNSUPPORTED && b == NULL, "%s: %d", says, (int)st);
    MM_CHECK(strstr(text, says) != NULL && strstr(text, "MM_CUDA_SO=") != NULL &&
                 strstr(text, path) != NULL && strstr(text, "unset it") != NULL,
             "%s", text);
    MM_CHECK(strcmp(mm_error_param(), "MM_CUDA_SO") == 0, "%s", mm_error_param());
    mm_error_clear();
}

MM_TEST(test_backend_library_that_does_not_exist)
{
    (void)remove(path);
    refused("cuda", "cannot be read (No such file or directory)");
}

/* The CPU may not run in place of a library that was named. */
MM_TEST(test_backend_auto_does_not_ignore_the_library)
{
    (void)remove(path);
    refused("auto", "cannot be read (No such file or directory)");
}

MM_TEST(test_backend_library_that_is_a_folder)
{
    (void)remove(path);
    MM_CHECK(mkdir(path, 0777) == 0);
    refused("cuda", "is a folder");
}

MM_TEST(test_backend_library_that_is_a_pipe)
{
    (void)remove(path);
    MM_CHECK(mkfifo(path, 0666) == 0);
    refused("cuda", "is no regular file");
}

static void break_magic(Elf64_Ehdr *h)
{
    h->e_ident[1] = 'e';
}

static void narrow(Elf64_Ehdr *h)
{
    h->e_ident[EI_CLASS] = ELFCLASS32;
}

static void move_sections(Elf64_Ehdr *h)
{
    h->e_shoff = UINT64_MAX - 8;
}

MM_TEST(test_backend_library_that_is_no_library)
{
    (void)remove(path);
    FILE *f = fopen(path, "wb");
    MM_CHECK(f != NULL && fclose(f) == 0);
    refused("cuda", "is no shared library");
    MM_CHECK(copy_self(-1, break_magic));
    refused("cuda", "is no shared library");
    MM_CHECK(copy_self(-1, narrow));
    refused("cuda", "is no 64-bit shared library");
}

static void hide_sections(Elf64_Ehdr *h)
{
    h->e_shoff = h->e_shnum = 0;
}

/* The loader would map what is not there and die of SIGBUS. */
MM_TEST(test_backend_library_that_was_cut)
{
    (void)remove(path);
    static const int64_t size[] = {sizeof(Elf64_Ehdr), 200, 20000};
    for (size_t i = 0; i < MM_ARRAY_LEN(size); i++) {
        MM_CHECK(copy_self(size[i], NULL));
        refused("cuda", "is not whole");
        MM_CHECK(copy_self(size[i], hide_sections)); /* stripped of its section table */
        refused("cuda", "is not whole");
    }
    MM_CHECK(copy_self(-1, move_sections));
    refused("cuda", "is not whole");
    struct stat whole;
    MM_CHECK(copy_self(-1, NULL) && stat(path, &whole) == 0);
    MM_CHECK(copy_self(whole.st_size - 1, NULL)); /* the section table is the file's end */
    refused("cuda", "is not whole");
}

MM_TEST(test_backend_library_that_the_loader_refuses)
{
    (void)remove(path);
    MM_CHECK(copy_self(-1, NULL)); /* whole, but a program */
    refused("cuda", "cannot be loaded (cannot dynamically load");
}

MM_TEST(test_backend_list_says_the_name_once)
{
    mm_backend_line line[8];
    (void)remove(path);
    MM_CHECK(mm_backend_list(line, 8) == 3 && strcmp(line[0].name, "cuda") == 0);
    MM_CHECK(!line[0].usable && strncmp(line[0].text, "MM_CUDA_SO=", 11) == 0, "%s", line[0].text);
    MM_CHECK(line[1].usable && line[2].usable);
}
