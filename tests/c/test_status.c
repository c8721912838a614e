#include <pthread.h>

#include "mm_test.h"

#include "csrc/base/log.h"

MM_TEST(test_error_set_keeps_message_param_and_index)
{
    const mm_status st =
        MM_FAIL_PARAM(MM_E_INVALID, "top_p", 3, "top_p is %.1f, it must be in (0, 1]", 1.5);
    MM_CHECK(st == MM_E_INVALID);
    MM_CHECK(strcmp(mm_error_message(), "top_p is 1.5, it must be in (0, 1]") == 0, "%s",
             mm_error_message());
    MM_CHECK(strcmp(mm_error_param(), "top_p") == 0);
    MM_CHECK(mm_error_index() == 3);
    mm_error_clear();
    MM_CHECK(mm_error_message()[0] == '\0' && mm_error_param()[0] == '\0' &&
             mm_error_index() == -1);
}

MM_TEST(test_error_set_cuts_long_text_at_a_character)
{
    char text[4001];
    for (int shift = 0; shift < 3; shift++) { /* three-byte characters, at every phase of the cut */
        memset(text, 'a', (size_t)shift);
        for (int i = shift; i + 3 <= 4000; i += 3)
            memcpy(text + i, "\xE2\x82\xAC", 3);
        text[shift + (4000 - shift) / 3 * 3] = '\0';
        const mm_status st = MM_FAIL(MM_E_IO, "%s", text);
        MM_CHECK(st == MM_E_IO);
        const size_t n = strlen(mm_error_message());
        MM_CHECK(n <= 1023 && n > 1019, "%zu", n);
        MM_CHECK((n - (size_t)shift) % 3 == 0, "cut inside a character: %zu bytes, shift %d", n,
                 shift);
    }
    memset(text, 'b', 1023);
    text[1023] = '\0';
    const mm_status st = MM_FAIL(MM_E_IO, "%s", text);
    MM_CHECK(st == MM_E_IO && strlen(mm_error_message()) == 1023,
             "a text that just fits is kept whole");
}

MM_TEST(test_error_set_may_quote_the_last_message)
{
    (void)MM_FAIL(MM_E_FORMAT, "shape [3, 4]");
    (void)MM_FAIL(MM_E_FORMAT, "layer 7: %s", mm_error_message());
    MM_CHECK(strcmp(mm_error_message(), "layer 7: shape [3, 4]") == 0, "%s", mm_error_message());
}

static void *fail_in_thread(void *arg)
{
    mm_error *reply = arg;
    (void)mm_error_set(MM_E_DEVICE, "devices", 1, "out of luck");
    mm_error_take(reply, MM_E_DEVICE);
    return NULL;
}

MM_TEST(test_error_take_moves_between_threads)
{
    (void)MM_FAIL(MM_E_IO, "of this thread");
    mm_error reply;
    pthread_t t;
    MM_CHECK(pthread_create(&t, NULL, fail_in_thread, &reply) == 0);
    pthread_join(t, NULL);
    MM_CHECK(strcmp(mm_error_message(), "of this thread") == 0, "messages are thread-local");
    MM_CHECK(mm_error_raise(&reply, "rank 3: ") == MM_E_DEVICE);
    MM_CHECK(strcmp(mm_error_message(), "rank 3: out of luck") == 0, "%s", mm_error_message());
    MM_CHECK(strcmp(mm_error_param(), "devices") == 0 && mm_error_index() == 1);
    const mm_error none = {.status = MM_OK};
    MM_CHECK(mm_error_raise(&none, "rank 0: ") == MM_OK);
}

MM_TEST(test_status_name_knows_every_code)
{
    for (int st = MM_OK; st <= MM_E_CANCELLED; st++)
        MM_CHECK(strcmp(mm_status_name((mm_status)st), "unknown") != 0, "status %d has no name",
                 st);
    MM_CHECK(strcmp(mm_status_name((mm_status)(MM_E_CANCELLED + 1)), "unknown") == 0);
}

MM_TEST(test_log_drops_the_oldest_and_says_so)
{
    int32_t level;
    char text[600];
    while (mm_log_take(&level, text, sizeof text))
        ;
    mm_log(MM_LOG_DEBUG, "below the level");
    for (int i = 0; i < 300; i++)
        mm_log(MM_LOG_ERROR, "line %d", i);
    MM_CHECK(mm_log_take(&level, text, sizeof text) == 1);
    MM_CHECK(strstr(text, "44 lines were dropped") != NULL, "%s", text);
    for (int i = 44; i < 300; i++) {
        char want[32];
        snprintf(want, sizeof want, "line %d", i);
        MM_CHECK(mm_log_take(&level, text, sizeof text) == 1 && level == MM_LOG_ERROR);
        MM_CHECK(strcmp(text, want) == 0, "%s instead of %s", text, want);
    }
    MM_CHECK(mm_log_take(&level, text, sizeof text) == 0);
}
