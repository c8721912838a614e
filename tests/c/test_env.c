/* The environment is read once per process, so this runner sets it before anything looks. */
#include "mm_test.h"

#include "csrc/base/env.h"
#include "csrc/base/log.h"
#include "kernels/backend.h"

__attribute__((constructor)) static void set_environment(void)
{
    setenv("MM_THREADS", "3", 1);
    setenv("MM_GRAPH", "0", 1);
    setenv("MM_SYNC", "yes", 1);    /* no number: warned about, no engine opens */
    setenv("MM_TIER", "AVX2", 1);   /* letters of any case */
    setenv("MM_BACKEND", "gpu", 1); /* no such choice: the same */
    setenv("MM_PROBE", "attn_q,3", 1);
    setenv("MM_DUMP", "", 1);          /* empty: as if unset */
    setenv("MM_LOG", "debug info", 1); /* two choices are none */
    setenv("MM_DEV", "1", 1);          /* a variable of the build: no warning */
    setenv("MM_THREDS", "3", 1);       /* a typo: warned about */
    setenv("MM_DEVICES", "0", 1);      /* read by nothing: warned about */
    unsetenv("MM_CHECK");
    unsetenv("MM_CUDA_SO");
}

MM_TEST(test_env_reads_what_is_set)
{
    const mm_env *e = mm_env_get();
    MM_CHECK(e->threads == 3 && e->graph == 0 && e->sync == 0 && e->check == 0);
    MM_CHECK(e->tier != NULL && strcmp(e->tier, "avx2") == 0);
    MM_CHECK(e->backend == NULL && e->dump == NULL && e->cuda_so == NULL && e->log == NULL);
    MM_CHECK(e->probe != NULL && strcmp(e->probe, "attn_q,3") == 0);
}

MM_TEST(test_env_warns_about_typos_and_bad_values_once)
{
    int32_t level;
    char text[600], all[2000] = "";
    int n = 0;
    (void)mm_env_get();
    while (mm_log_take(&level, text, sizeof text)) {
        MM_CHECK(level == MM_LOG_WARNING);
        strncat(all, text, sizeof all - strlen(all) - 1);
        n++;
    }
    MM_CHECK(n == 5, "%d: %s", n, all);
    MM_CHECK(strstr(all, "MM_SYNC=yes") && strstr(all, "MM_BACKEND=gpu") &&
                 strstr(all, "MM_LOG=debug info") && strstr(all, "MM_THREDS") &&
                 strstr(all, "MM_DEVICES"),
             "%s", all);
    (void)mm_env_get();
    MM_CHECK(mm_log_take(&level, text, sizeof text) == 0);
}

MM_TEST(test_env_names_the_first_bad_value)
{
    const char *name = NULL, *text = mm_env_bad_value(&name);
    MM_CHECK(text != NULL && strcmp(name, "MM_LOG") == 0, "%s", text);
    MM_CHECK(strstr(text, "MM_LOG=debug info: it must be one of debug info warning error"), "%s",
             text);
}

MM_TEST(test_env_lists_what_is_wrong)
{
    static const char *const bad[] = {"MM_LOG", "MM_BACKEND", "MM_SYNC"};
    const char *name, *text;
    int32_t is_value, n = 0, n_name = 0;
    for (; mm_env_problem(n, &name, &text, &is_value); n++) {
        if (n < 3)
            MM_CHECK(is_value && strcmp(name, bad[n]) == 0, "%s", name);
        else
            n_name +=
                !is_value && (strcmp(name, "MM_THREDS") == 0 || strcmp(name, "MM_DEVICES") == 0);
        MM_CHECK(strstr(text, name) != NULL, "%s", text);
    }
    MM_CHECK(n == 5 && n_name == 2, "%d problems, %d names", n, n_name);
    MM_CHECK(mm_env_problem(-1, &name, &text, &is_value) == 0);
    text = mm_env_problem_of("MM_BACKEND");
    MM_CHECK(text != NULL && strstr(text, "MM_BACKEND=gpu") != NULL, "%s", text);
    MM_CHECK(mm_env_problem_of("MM_THREADS") == NULL);
}

/* "auto" may not become what the variable does not say. */
MM_TEST(test_env_bad_backend_is_refused_by_auto_alone)
{
    mm_backend_options opt = {.name = "auto", .n_thread = 1};
    mm_backend *b = NULL;
    MM_CHECK(mm_backend_open(&b, &opt) == MM_E_CONFIG && b == NULL);
    MM_CHECK(strstr(mm_error_message(), "MM_BACKEND=gpu"), "%s", mm_error_message());
    mm_error_clear();
    opt.name = "ref";
    MM_CHECK(mm_backend_open(&b, &opt) == MM_OK);
    mm_backend_close(b);
}

MM_TEST(test_env_is_read_once)
{
    (void)mm_env_get();
    setenv("MM_THREADS", "7", 1);
    MM_CHECK(mm_env_get()->threads == 3);
    const char *name, *value, *help;
    int n = 0;
    for (; mm_env_entry(n, &name, &value, &help); n++) {
        MM_CHECK(strncmp(name, "MM_", 3) == 0 && help[0] != '\0');
        if (strcmp(name, "MM_THREADS") == 0)
            MM_CHECK(strcmp(value, "3") == 0);
        if (strcmp(name, "MM_BACKEND") == 0)
            MM_CHECK(value[0] == '\0');
    }
    MM_CHECK(n == 11, "%d variables", n);
    MM_CHECK(mm_env_entry(-1, &name, &value, &help) == 0);
}
