/* test_queue.c: the table of requests and the lists between callers and the coordinator. */
#include "csrc/engine/queue.h"
#include "csrc/engine/request_deck.h"
#include "tests/c/mm_random.h"
#include "tests/c/mm_test.h"

static mm_request *make(void)
{
    mm_request *r = mm_request_take();
    if (r == NULL)
        abort();
    return r;
}

MM_TEST(test_queue_finds_every_request_through_growth_and_release)
{
    enum { N = 5000 };
    static mm_request *all[N];
    mm_queue q;
    mm_waiter w = {0};
    uint64_t rnd = 3;
    MM_CHECK(mm_queue_open(&q) == MM_OK, "%s", mm_error_message());
    for (int i = 0; i < N; i++) {
        all[i] = make();
        MM_CHECK(mm_queue_add(&q, &w, all[i]) == MM_OK && all[i]->id == (uint64_t)i + 1,
                 "request %d", i);
    }
    MM_CHECK(q.n_inbox == N && q.inbox_first == all[0] && q.inbox_last == all[N - 1],
             "the inbox is not in order");
    for (int i = 0; i < N; i++)
        all[i]->is_held = false; /* as if all had ended */
    for (int k = 0; k < N / 2; k++) {
        const uint64_t id = (uint64_t)random_below(&rnd, N) + 1;
        mm_request *r = mm_queue_find(&q, id);
        MM_CHECK(r == all[id - 1], "request %llu is not found", (unsigned long long)id);
        if (r != NULL) {
            mm_request_close(mm_queue_release(&q, r));
            all[id - 1] = NULL;
        }
    }
    for (int i = 0; i < N; i++)
        MM_CHECK(mm_queue_find(&q, (uint64_t)i + 1) == all[i], "request %d", i + 1);
    MM_CHECK(mm_queue_find(&q, 0) == NULL && mm_queue_find(&q, N + 1) == NULL,
             "an id that was never given");
    mm_queue_close(&q); /* frees the rest */
}

MM_TEST(test_queue_ready_list_holds_each_request_once_in_order)
{
    mm_queue q;
    mm_waiter w = {0};
    mm_request *r[4];
    MM_CHECK(mm_queue_open(&q) == MM_OK, "%s", mm_error_message());
    for (int i = 0; i < 4; i++) {
        r[i] = make();
        MM_CHECK(mm_queue_add(&q, &w, r[i]) == MM_OK, "add");
    }
    static const int news[7] = {2, 0, 2, 3, 0, 1, 2};
    for (int i = 0; i < 7; i++) {
        const bool is_first = !r[news[i]]->is_ready;
        MM_CHECK(mm_queue_push_ready(r[news[i]]) == is_first, "news %d", i);
    }
    r[3]->is_held = false;
    mm_request_close(mm_queue_release(&q, r[3])); /* leaves the list from its middle */
    static const int order[3] = {2, 0, 1};
    for (int i = 0; i < 3; i++) {
        mm_request *got = mm_queue_pop_ready(&w);
        MM_CHECK(got == r[order[i]], "place %d", i);
    }
    MM_CHECK(mm_queue_pop_ready(&w) == NULL && w.ready_last == NULL, "the list is not empty");
    MM_CHECK(mm_queue_push_ready(r[2]), "it was read");
    MM_CHECK(mm_queue_pop_ready(&w) == r[2], "a request can be news again");
    mm_queue_close(&q);
}

MM_TEST(test_queue_release_of_a_held_request_aborts_and_is_closed_at_retirement)
{
    mm_queue q;
    mm_waiter w = {0};
    mm_request *a = make(), *b = make();
    MM_CHECK(mm_queue_open(&q) == MM_OK, "%s", mm_error_message());
    MM_CHECK(mm_queue_add(&q, &w, a) == MM_OK && mm_queue_add(&q, &w, b) == MM_OK, "add");
    mm_queue_command(&q, b, MM_PENDING_MASK);
    MM_CHECK(mm_queue_release(&q, a) == NULL, "the engine still holds it");
    MM_CHECK(q.pending == a && a->pending == MM_PENDING_ABORT && a->pending_next == b,
             "no abort was left");
    MM_CHECK(mm_queue_find(&q, a->id) == NULL && w.owned == b && b->own_prev == NULL,
             "it is still there");
    MM_CHECK(!mm_queue_push_ready(a), "nobody is to be told");
    MM_CHECK(w.ready_first == NULL, "news of a released request");
    MM_CHECK(mm_queue_retire(&q, a) == a && q.pending == b && b->pending == MM_PENDING_MASK,
             "retire");
    mm_request_close(a);
    MM_CHECK(mm_queue_retire(&q, b) == NULL && q.pending == NULL, "its owner still reads it");
    mm_queue_command(&q, b, MM_PENDING_ABORT);
    MM_CHECK(q.pending == NULL, "a command for a request that has ended");
    mm_queue_close(&q);
}

MM_TEST(test_queue_says_why_it_takes_no_calls)
{
    mm_queue q;
    MM_CHECK(mm_queue_open(&q) == MM_OK && mm_queue_check_alive(&q) == MM_OK, "%s",
             mm_error_message());
    q.is_dead = true;
    mm_error_take(&q.cause, MM_FAIL_PARAM(MM_E_DEVICE, "device", 3, "the device burned"));
    MM_CHECK(mm_queue_check_alive(&q) == MM_E_DEAD &&
                 strstr(mm_error_message(), "the device burned") != NULL,
             "%s", mm_error_message());
    q.is_stopping = true;
    MM_CHECK(mm_queue_check_alive(&q) == MM_E_CLOSED, "%s", mm_error_message());
    mm_queue_close(&q);
}

MM_TEST(test_cond_wait_until_keeps_time)
{
    mm_queue q;
    MM_CHECK(mm_queue_open(&q) == MM_OK, "%s", mm_error_message());
    const double begin = mm_now();
    pthread_mutex_lock(&q.lock);
    mm_cond_wait_until(&q.work, &q.lock, begin + 0.05);
    pthread_mutex_unlock(&q.lock);
    const double took = mm_now() - begin;
    MM_CHECK(took > 0.01 && took < 5, "a wait of 0.05 s took %g s", took); /* may wake early, never
                                                                              at once */
    mm_queue_close(&q);
}
