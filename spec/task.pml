/* A task of the board (src/postroom/board): one owner, done once, and a kill between any two writes.

   What is modelled
     One task, which is one cell, and the two derived things by which it is found again (board/records.py): its entry in
     the index of ready tasks, and the note of its claim; mending makes both anew. Every write of a cell is a step of its
     own, done by compare-and-set, and between any two of them the worker can be killed, its lease can end, and others act.

   What is left out
     Other tasks, and waiting for them; the mail of the board, but for the message to the lead; edits by hand. A lease may
     end at any moment, instead of at its time. The look over the notes, with which most calls of the board begin, is a
     call of its own here. Extending is one step, though it writes the task and then the note that is missing. */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef TOKENS
#define TOKENS 3          /* claims, releases, aborts and reopenings, in all: each makes a new token */
#endif

#ifndef ABORTS
#define ABORTS 1          /* 1: somebody may call it off */
#endif

#define NOBODY 8          /* no worker; the same number whatever the bounds are, because traces tell it */
#define GONE 9            /* a worker that was killed */

mtype = { ready, claimed, finished, blocked, aborted };                       /* states; `finished` is the board's "done" */
mtype = { idle, took, holds, reports_it, looked, adopted, saw, moved, offered };   /* where a worker is in its steps */
mtype = { search, take, write_note, adopt, take_out, ask, report, extend, take_back, see, act, pick_up,
          follow, forget, mend_index, mend_note, crash, lapse };                                         /* the steps */
mtype = { yes, no };      /* and their outcomes: the call goes on or was done; or it ends, and has changed nothing more */

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
    mtype state = idle;        /* that the task is to have, in the middle of settling, aborting or reopening it; and when */
    byte token;                /* it was moved: what is to be followed, with this token */
    byte note;                 /* the token of the note that was read, 0 when there was none; */
    bool note_is_same          /* nobody has written or deleted it since: a version would tell */
};
Worker worker[WORKERS];
byte crashes;
#ifdef TRACE
byte steps;
#endif

byte sure = NOBODY;            /* not on the board: the worker that may rely on having the task, */
byte reports;                  /* and how many reports of its end counted */

#define LAPSED    (state == claimed && (ended || owner == GONE))
#define CLAIMABLE (state == ready || LAPSED)
#define ABORTABLE (state != finished && state != aborted)
#define REOPENABLE (state == blocked || state == aborted)
#define MINE(w)   (worker[w].ticket != 0 && worker[w].ticket == token && \
                  ((state == claimed && owner == w) || (state == ready && last_owner == w)))

/* ---- The promises (docs/guarantees.md) ---- */

#define PROMISE(name, holds) assert(holds)

/* Scratch of one step; never part of a state. */
hidden byte i, found, was_lapsed, was_indexed, was_noted, happened;
hidden mtype was, intent;

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

inline begin() { was = state; was_lapsed = LAPSED; was_indexed = indexed; was_noted = (note != 0) }

/* The end of each step: every promise holds, and it is told, with what it changed, and then with what is in the cells. */
inline done(step, w, how, outcome) {
    every_promise();
    printf("%e %d %e %e | %e>%e %d>%d %d>%d %d>%d | %d %d %d %d %d\n", step, w, how, outcome,
           was, state, was_lapsed, LAPSED, was_indexed, indexed, was_noted, note != 0, token, owner, last_owner, note, told)
#ifdef TRACE
    ; steps++
#endif
}

inline rest(w) {
    worker[w].is = idle; worker[w].index_is_same = false; worker[w].state = idle; worker[w].token = 0;
    worker[w].note = 0; worker[w].note_is_same = false
}

inline change_note(of_token) {
    note = of_token;
    for (i : 0 .. WORKERS - 1) { worker[i].note_is_same = false }
}

inline write_index(there) {
    indexed = there;
    for (i : 0 .. WORKERS - 1) { worker[i].index_is_same = false }
}

inline hold(w) { state = claimed; owner = w; last_owner = NOBODY; ended = false; sure = w; worker[w].is = took }

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

/* The note is read, before the task is settled; a call that is asked for says at its beginning what it is to do. */
inline asking(w, to) {
    begin();
    read_note(w);
    worker[w].state = to;
    worker[w].is = reports_it;
    done(ask, w, to, yes)
}

inline reporting(w, next_token) {
    begin();
    intent = worker[w].state;
    if :: intent == finished -> reports++ :: else fi;
    move(w, intent, next_token, NOBODY);
    worker[w].ticket = 0;
    done(report, w, intent, yes)
}

/* It is not this worker's any more: it is told so, and lets go. */
inline losing(w, step) {
    begin();
    intent = worker[w].state;
    worker[w].ticket = 0;
    rest(w);
    done(step, w, intent, no)
}

/* The same when it was let go, and nobody has claimed it since: claimed back, to be settled then if that was asked for. */
inline taking_back(w) {
    begin();
    intent = worker[w].state;
    rest(w);
    worker[w].state = intent;
    hold(w);
    done(take_back, w, intent, yes)
}

inline seeing(w, to) {
    begin();
    read_note(w);
    worker[w].state = to;
    worker[w].is = saw;
    done(see, w, to, yes)
}

inline acting(w, to, next_token, late_owner) {
    begin();
    intent = worker[w].state;
    move(w, to, next_token, late_owner);
    done(act, w, intent, yes)
}

inline leaving(w) {
    begin();
    intent = worker[w].state;
    rest(w);
    done(act, w, intent, no)
}

#define MAY_GROW   (token < TOKENS)
#define REPORTS(w) (worker[w].is == reports_it && state == claimed && MINE(w))
#define AT_HAND(w) (worker[w].is == holds && worker[w].state == idle)     /* held, and nothing is said of it yet */
#define SEES(w, to) (worker[w].is == saw && worker[w].state == to)

proctype W(byte w) {
end: do
    /* Claiming: the index is read, then the task is written, then the note. */
    :: d_step { worker[w].is == idle && indexed ->
                begin(); worker[w].is = looked; worker[w].index_is_same = true; done(search, w, idle, yes) }
    :: d_step { worker[w].is == looked && CLAIMABLE && MAY_GROW ->
                PROMISE(13_a_task_has_one_owner, sure == NOBODY);
                begin(); rest(w); token++; hold(w); worker[w].ticket = token; done(take, w, idle, yes) }
    :: d_step { worker[w].is == took ->
                begin(); change_note(worker[w].ticket); worker[w].is = holds; done(write_note, w, worker[w].state, yes) }

    /* An entry that cannot be claimed is taken out, when the claim has a note; the index must be as it was read. */
    :: d_step { worker[w].is == looked && state == claimed && !LAPSED ->
                begin(); if :: note == 0 -> change_note(token) :: else fi; worker[w].is = adopted; done(adopt, w, idle, yes) }
    :: d_step { worker[w].is == looked && state != claimed && state != ready ->
                begin(); worker[w].is = adopted; done(adopt, w, idle, yes) }
    :: d_step { worker[w].is == adopted ->
                begin(); happened = (indexed && worker[w].index_is_same);
                if :: happened -> write_index(false) :: else fi;
                rest(w);
                if :: happened -> done(take_out, w, idle, yes) :: else -> done(take_out, w, idle, no) fi }

    /* Settling: the note is read, then the task is written. A stale owner changes nothing. */
    :: d_step { AT_HAND(w) -> asking(w, finished) }
    :: d_step { AT_HAND(w) -> asking(w, blocked) }
    :: d_step { AT_HAND(w) -> asking(w, ready) }
    :: d_step { worker[w].is == holds && worker[w].state != idle -> asking(w, worker[w].state) }
    :: d_step { REPORTS(w) && worker[w].state != ready -> reporting(w, token) }
    :: d_step { REPORTS(w) && worker[w].state == ready && MAY_GROW -> reporting(w, token + 1) }
    :: d_step { worker[w].is == reports_it && !MINE(w) -> losing(w, report) }

    /* Extending. A late owner claims the task back, with a note of its own, while nobody else has: also to settle it. */
    :: d_step { AT_HAND(w) && state == claimed && MINE(w) ->
                begin(); ended = false; sure = w;
                if :: note == 0 -> change_note(token) :: else fi; done(extend, w, idle, yes) }
    :: d_step { AT_HAND(w) && !MINE(w) -> losing(w, extend) }
    :: d_step { (AT_HAND(w) || worker[w].is == reports_it) && state == ready && MINE(w) -> taking_back(w) }

    /* Somebody calls it off, or makes it ready again, or looks over the notes; the note is read first. */
    :: d_step { worker[w].is == idle && MAY_GROW && ABORTS -> seeing(w, aborted) }
    :: d_step { worker[w].is == idle && MAY_GROW -> seeing(w, ready) }
    :: d_step { worker[w].is == idle -> seeing(w, idle) }
    :: d_step { SEES(w, aborted) && ABORTABLE && MAY_GROW -> acting(w, aborted, token + 1, NOBODY) }
    :: d_step { SEES(w, aborted) && !ABORTABLE -> leaving(w) }
    :: d_step { SEES(w, ready) && REOPENABLE && MAY_GROW -> acting(w, ready, token + 1, NOBODY) }
    :: d_step { SEES(w, ready) && !REOPENABLE -> leaving(w) }

    /* Looking over the notes: what lapsed is made ready, with the same token; what is at rest is followed. */
    :: d_step { SEES(w, idle) && worker[w].note != 0 && LAPSED -> acting(w, ready, token, owner) }
    :: d_step { SEES(w, idle) && worker[w].note != 0 && state != claimed ->
                begin(); worker[w].is = moved; worker[w].state = state; worker[w].token = token; done(pick_up, w, state, yes) }
    :: d_step { SEES(w, idle) && (worker[w].note == 0 || (state == claimed && !LAPSED)) -> leaving(w) }

    /* What follows: offer the task or tell the lead, then take away the note that was read. */
    :: d_step { worker[w].is == moved ->
                begin();
                if
                :: worker[w].state == ready -> write_index(true)
                :: worker[w].state == finished -> told = true
                :: else
                fi;
                worker[w].is = offered; done(follow, w, worker[w].state, yes) }
    :: d_step { worker[w].is == offered ->
                begin(); intent = worker[w].state;
                happened = (worker[w].note != 0 && worker[w].note_is_same && worker[w].note <= worker[w].token);
                if :: happened -> change_note(0) :: else fi;
                rest(w);
                if :: happened -> done(forget, w, intent, yes) :: else -> done(forget, w, intent, no) fi }

    /* Mending makes the index, and then the notes, anew from the task. */
    :: d_step { worker[w].is == idle && CLAIMABLE && !indexed -> begin(); write_index(true); done(mend_index, w, idle, yes) }
    :: d_step { worker[w].is == idle && state == claimed && note == 0 && (indexed || !LAPSED) ->
                begin(); change_note(token); done(mend_note, w, idle, yes) }

    /* It is killed, in the middle of anything. Another takes its place, and knows nothing. */
    :: d_step { crashes < CRASHES ->
                begin();
                crashes++; rest(w); worker[w].ticket = 0;
                if :: owner == w -> owner = GONE :: else fi;
                if :: last_owner == w -> last_owner = GONE :: else fi;
                if :: sure == w -> sure = NOBODY :: else fi;
                done(crash, w, idle, yes) }
    od
}

/* Time: a lease ends. */
active proctype Time() {
end: do
    :: d_step { state == claimed && !ended -> begin(); ended = true; sure = NOBODY; done(lapse, NOBODY, idle, yes) }
    od
}

#ifdef TRACE
/* For traces alone: after so many steps the next board begins, with a new task. */
active proctype Scribe() {
end: do
    :: d_step { steps >= TRACE ->
        printf("end\n");
        for (i : 0 .. WORKERS - 1) { rest(i); worker[i].ticket = 0 };
        state = ready; token = 0; owner = NOBODY; last_owner = NOBODY; ended = false; indexed = true; note = 0; told = false;
        crashes = 0; sure = NOBODY; reports = 0; steps = 0 }
    od
}
#endif

init {
    byte n;
    atomic { for (n : 0 .. WORKERS - 1) { run W(n) }; n = 0 }
}
