/* request_deck.h: where requests lie. A step touches two lines of every running one, and finding a
 * page of memory costs more than reading it: so requests lie side by side, in decks, and those that
 * run, mostly submitted one after the other, share pages. Safe from any thread. */
#ifndef MM_REQUEST_DECK_H
#define MM_REQUEST_DECK_H
#include "csrc/engine/request.h"

/* A zeroed request, in the deck with room that was used last; NULL: no memory. */
mm_request *mm_request_take(void);
/* Gives it back; an empty deck is freed unless it is the last one with room. */
void mm_request_give(mm_request *r);
#endif
