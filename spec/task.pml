/* A task of the board (src/postroom/board): one owner, done once, and a kill between any two writes.

   What is modelled
     One task, which is one cell, and the two derived things by which it is found again (board/records.py): its entry in
     the index of ready tasks, and the note of its claim; mending makes both anew. Every write of a cell is a step of its
     own, done by compare-and-set, and between any two of them the worker can be killed, its lease can end, and others act.

   What is left out
     Other tasks, and waiting for them; the mail of the board, but for the message to the lead; edits by hand. A lease may
     end at any moment, instead of at its time. */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef TOKENS
#define TOKENS 3          /* claims, releases, aborts and reopenings, in all: each makes a new token */
#endif

#define NOBODY WORKERS
#define GONE (WORKERS + 1)

mtype = { ready, claimed, finished, blocked, aborted };                       /* states; `finished` is the board's "done" */
mtype = { idle, took, holds, reports_it, looked, adopted, saw, moved, offered };   /* where a worker is in its steps */

/* The cells. */
mtype state = ready;
byte token;
byte owner = NOBODY;
byte last_owner = NOBODY;      /* whose lease ended: it may still report, until another claims */
bool ended;                    /* the lease has ended */
bool indexed = true;           /* there is an entry in the index */
byte note;                     /* the note of a claim: the token that it tells of, 0 when there is none */
bool told;                     /* the lead has the message that it is done */

typedef Worker {
    mtype is = idle;
    byte ticket;               /* the token of its claim; 0: none */
    bool index_is_same;        /* nobody has written the index since it was read */
    mtype state = idle;        /* of the task, when it was moved: what is to be followed, */
    byte token;                /* with this token */
    byte note;                 /* the token of the note that was read, 0 when there was none; */
    bool note_is_same          /* nobody has written or deleted it since: a version would tell */
};
Worker worker[WORKERS];
byte crashes;

byte sure = NOBODY;            /* not on the board: the worker that may rely on having the task, */
byte reports;                  /* and how many reports of its end counted */

#define LAPSED    (state == claimed && (ended || owner == GONE))
#define CLAIMABLE (state == ready || LAPSED)
#define MINE(w)   (worker[w].ticket != 0 && worker[w].ticket == token && \
                  ((state == claimed && owner == w) || (state == ready && last_owner == w)))

/* ---- The promises (docs/guarantees.md) ---- */

#define PROMISE(name, holds) assert(holds)

hidden byte i, found;

/* The lead is told, or somebody is at it, or the note lets the next look find it. */
inline lead_is_told() {
    found = (state != finished || told || note != 0);
    for (i : 0 .. WORKERS - 1) {
        if
        :: worker[i].is == moved && worker[i].state == finished -> found = true
        :: else
        fi
    };
    PROMISE(13_a_kill_between_any_two_writes_loses_nothing, found)
}

inline every_promise() {
    PROMISE(13_a_task_has_one_owner, sure == NOBODY || (state == claimed && MINE(sure)));
    PROMISE(13_not_done_again, reports <= 1 && (reports == 0 || state == finished));
    lead_is_told()
}

/* ---- Parts of the steps ---- */

inline rest(w) {
    worker[w].is = idle; worker[w].index_is_same = false; worker[w].state = idle; worker[w].token = 0;
    worker[w].note = 0; worker[w].note_is_same = false
}

inline write_note(of_token) {
    note = of_token;
    for (i : 0 .. WORKERS - 1) { worker[i].note_is_same = false }
}

inline write_index(there) {
    indexed = there;
    for (i : 0 .. WORKERS - 1) { worker[i].index_is_same = false }
}

/* The task is written; what follows from it is to be done next. */
inline move(w, to, next_token, late_owner) {
    state = to;
    token = next_token;
    last_owner = late_owner;   /* before the owner is forgotten: it may be the one */
    owner = NOBODY;
    ended = false;
    sure = NOBODY;
    worker[w].is = moved;
    worker[w].state = to;
    worker[w].token = token
}

inline read_note(w) { worker[w].note = note; worker[w].note_is_same = true }

#define MAY_GROW   (token < TOKENS)
#define REPORTS(w) (worker[w].is == reports_it && state == claimed && MINE(w))

proctype W(byte w) {
end: do
    /* Claiming: the index is read, then the task is written, then the note. */
    :: d_step { worker[w].is == idle && indexed -> worker[w].is = looked; worker[w].index_is_same = true }
    :: d_step { worker[w].is == looked && CLAIMABLE && MAY_GROW ->
                PROMISE(13_a_task_has_one_owner, sure == NOBODY);
                rest(w);
                state = claimed; token++; owner = w; last_owner = NOBODY; ended = false; sure = w;
                worker[w].ticket = token; worker[w].is = took; every_promise() }
    :: d_step { worker[w].is == took -> write_note(worker[w].ticket); worker[w].is = holds; every_promise() }

    /* An entry that cannot be claimed is taken out, when the claim has a note; the index must be as it was read. */
    :: d_step { worker[w].is == looked && state == claimed && !LAPSED ->
                if :: note == 0 -> write_note(token) :: else fi; worker[w].is = adopted; every_promise() }
    :: d_step { worker[w].is == looked && state != claimed && state != ready -> worker[w].is = adopted }
    :: d_step { worker[w].is == adopted ->
                if :: indexed && worker[w].index_is_same -> write_index(false) :: else fi;
                rest(w); every_promise() }

    /* Settling: the note is read, then the task is written. A stale owner changes nothing. */
    :: d_step { worker[w].is == holds -> read_note(w); worker[w].is = reports_it }
    :: d_step { REPORTS(w) -> reports++; move(w, finished, token, NOBODY); worker[w].ticket = 0; every_promise() }
    :: d_step { REPORTS(w) -> move(w, blocked, token, NOBODY); worker[w].ticket = 0; every_promise() }
    :: d_step { REPORTS(w) && MAY_GROW -> move(w, ready, token + 1, NOBODY); worker[w].ticket = 0; every_promise() }
    :: d_step { (worker[w].is == holds || worker[w].is == reports_it) && !MINE(w) -> worker[w].ticket = 0; rest(w) }

    /* Extending. A late owner claims the task back, with a note of its own, while nobody else has: also to settle it. */
    :: d_step { worker[w].is == holds && state == claimed && MINE(w) ->
                ended = false; sure = w;
                if :: note == 0 -> write_note(token) :: else fi; every_promise() }
    :: d_step { (worker[w].is == holds || worker[w].is == reports_it) && state == ready && MINE(w) ->
                rest(w); state = claimed; owner = w; last_owner = NOBODY; ended = false; sure = w;
                worker[w].is = took; every_promise() }

    /* Somebody calls it off, or makes it ready again; the note was read before. */
    :: d_step { worker[w].is == idle -> read_note(w); worker[w].is = saw }
    :: d_step { worker[w].is == saw && state != finished && state != aborted && MAY_GROW ->
                move(w, aborted, token + 1, NOBODY); every_promise() }
    :: d_step { worker[w].is == saw && (state == blocked || state == aborted) && MAY_GROW ->
                move(w, ready, token + 1, NOBODY); every_promise() }

    /* Looking over the notes: what lapsed is made ready, with the same token; what is at rest is followed. */
    :: d_step { worker[w].is == saw && worker[w].note != 0 && LAPSED -> move(w, ready, token, owner); every_promise() }
    :: d_step { worker[w].is == saw && worker[w].note != 0 && state != claimed ->
                worker[w].is = moved; worker[w].state = state; worker[w].token = token }
    :: d_step { worker[w].is == saw -> rest(w) }

    /* What follows: offer the task or tell the lead, then take away the note that was read. */
    :: d_step { worker[w].is == moved ->
                if
                :: worker[w].state == ready -> write_index(true)
                :: worker[w].state == finished -> told = true
                :: else
                fi;
                worker[w].is = offered; every_promise() }
    :: d_step { worker[w].is == offered ->
                if
                :: worker[w].note != 0 && worker[w].note_is_same && worker[w].note <= worker[w].token -> write_note(0)
                :: else
                fi;
                rest(w); every_promise() }

    /* Mending makes the index and the notes anew from the task. */
    :: d_step { worker[w].is == idle && CLAIMABLE && !indexed -> write_index(true); every_promise() }
    :: d_step { worker[w].is == idle && state == claimed && note == 0 -> write_note(token); every_promise() }

    /* It is killed, in the middle of anything. Another takes its place, and knows nothing. */
    :: d_step { crashes < CRASHES ->
                crashes++; rest(w); worker[w].ticket = 0;
                if :: owner == w -> owner = GONE :: else fi;
                if :: last_owner == w -> last_owner = GONE :: else fi;
                if :: sure == w -> sure = NOBODY :: else fi;
                every_promise() }
    od
}

/* Time: a lease ends. */
active proctype Time() {
end: do
    :: d_step { state == claimed && !ended -> ended = true; sure = NOBODY; every_promise() }
    od
}

init {
    byte n;
    atomic { for (n : 0 .. WORKERS - 1) { run W(n) }; n = 0 }
}
