/* The life of a message, as every store keeps it (src/postroom/stores/contract.py).

   What is modelled
     Messages that are sent, claimed under a lease, settled, and delivered again when their receiver fails, is late or
     dies: states (core/states.py), fencing tokens, owners, delays, lives that end, dead letters that are put back, and a
     question's answer, which is kept for an asker that waits. Every step is one call of the contract, and as there it
     happens whole. All steps that receivers, askers, a person and the clock can take may follow each other in any order.

   What is left out
     Priorities, channels and publishing; idempotency keys; purging and retention; ledgers, feed and hints; claims of
     several messages; restarts of the machine. A death is seen at once (a store may take a second). A claim writes down
     what time did to all messages, also that of an answer (on NATS, to those that it looks at).

   Time is counted in ticks, and a time as what is left of it: no run is cut off by a clock that reaches its end. The
   same with tokens: a message's present token is `now` and every smaller one `old`, because a number that only grows
   never comes back. What people may repeat for ever, and would make no new state but a number, has a budget. */

#ifndef RECEIVERS
#define RECEIVERS 3       /* processes that compete for the messages */
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef CRASHES
#define CRASHES 2         /* receivers and askers that are killed, in all */
#endif
#ifndef JUMPS
#define JUMPS 1           /* 1: somebody sets the wall clock, as often as it pleases */
#endif
#ifndef FAVOURS
#define FAVOURS 1         /* messages that get their deliveries back: they were put back, or returned unseen */
#endif

#define LEASE 2           /* ticks that a claim or an extension holds */
#define DELAY 1           /* ticks until a retried or delayed message is due */
#define LIFE 2            /* ticks after which a short-lived message expires */
#define NEVER 9           /* the life of all others */

#define NOBODY RECEIVERS        /* no receiver */
#define GONE (RECEIVERS + 1)    /* a receiver that was killed */
#define NONE MESSAGES           /* no message */

mtype = { unsent, ready, delayed, claimed, acked, answered, refused, expired, dead };            /* states */
mtype = { old, now };                                                                            /* tickets */
mtype = { no, waits, held, loose, taken };                                              /* asker and answer */
mtype = { send, claim, take, settle, settle_and_claim, extend, heartbeat, requeue, sweep,      /* the steps */
          tick, jump, crash, asker_crash, abandon, fetch, receive };
mtype = { plain, question, brief, later, fragile,            /* what is sent: brief ones expire, fragile ones may be */
          retry, retry_later, returned };                    /* delivered once; and what else is said in settling */
mtype = { yes, nothing };          /* and their outcomes: it was done; nothing was given, and nothing has changed */

typedef Message {
    mtype state = unsent;      /* as it is written down; SEEN(m) is what a look shows */
    byte deliveries;
    byte most;                 /* deliveries that are allowed */
    byte left;                 /* until the lease ends, or the delay */
    byte life = NEVER;         /* until it expires */
    byte owner = NOBODY;       /* the receiver that claimed it */
    mtype asker = no;          /* of a question: whether its asker waits */
    mtype answer = no;         /* of a question: where its answer is */
    byte sure = NOBODY;        /* not in the store: the receiver that may rely on having it, */
    byte sure_left             /* and for how long, by its own clock */
};
Message message[MESSAGES];

typedef Tickets { mtype on[MESSAGES] = no };
Tickets ticket[RECEIVERS];     /* the last ticket of each receiver for each message */

byte sent, crashes, favours;   /* how many so far */
#ifdef TRACE
byte steps, ended;
#endif

/* What the clock did counts, though nobody has written it down yet: states.judge. */
#define OVER(m)   (message[m].state == claimed && (message[m].left == 0 || message[m].owner == GONE))
#define SPENT(m)  (message[m].deliveries >= message[m].most)
#define LOOSE(m)  (OVER(m) || message[m].state == ready || message[m].state == delayed)
#define SEEN(m)   (OVER(m) && SPENT(m) -> dead : (LOOSE(m) && message[m].life == 0 -> expired : \
                  (OVER(m) || (message[m].state == delayed && message[m].left == 0) -> ready : message[m].state)))
#define COMES_BACK(m) (message[m].left > 0 && message[m].left <= LEASE && message[m].owner != GONE) /* time does it */
#define FINISHED(s) (s == acked || s == answered || s == refused || s == expired || s == dead)

/* The fence. The end of a lease takes nothing from its holder; only the next claim does. */
#define COUNTS(r, m) (ticket[r].on[m] == now && (message[m].state == claimed || message[m].state == ready))
#define HAS_HAD(r, m) (ticket[r].on[m] != no)

/* Scratch of one step; never part of a state. */
hidden byte i, j, got;
hidden mtype answer_before, outcome, seen, was[MESSAGES], looked[MESSAGES];

/* ---- The promises (docs/guarantees.md) ---- */

#define PROMISE(name, holds) assert(holds)

inline every_promise() {
    for (i : 0 .. MESSAGES - 1) {
        PROMISE(1_a_send_that_returned_is_kept, (i < sent) == (message[i].state != unsent));
        PROMISE(3_only_settling_ends_it, was[i] != acked || message[i].state == acked);
        PROMISE(3_only_settling_ends_it, was[i] != answered || message[i].state == answered);
        PROMISE(4_one_live_owner, message[i].sure == NOBODY || COUNTS(message[i].sure, i));
        PROMISE(4_one_live_owner, message[i].sure == NOBODY || SEEN(i) == claimed);
        PROMISE(5_then_set_aside, message[i].deliveries <= message[i].most);
        PROMISE(5_at_least_once, i >= sent || FINISHED(SEEN(i)) || SEEN(i) == ready || COMES_BACK(i));
        PROMISE(8_nobody_waits_for_ever, message[i].asker == no || !FINISHED(message[i].state) || message[i].answer == held);
        PROMISE(8_an_answer_is_ordinary_mail_when_nobody_waits, message[i].answer != held || message[i].asker == waits);
        PROMISE(2_an_answer_is_there_exactly_when_it_was_said, (message[i].answer != no) == (message[i].state == answered))
    }
}

/* ---- Parts of the steps ---- */

inline begin(m) {
    got = NONE;
    outcome = nothing;
    for (i : 0 .. MESSAGES - 1) { was[i] = message[i].state; looked[i] = SEEN(i) };
    if :: m < MESSAGES -> answer_before = message[m].answer :: else -> answer_before = no fi
}

#ifdef TRACE
inline count_ended() {
    ended = 0;
    for (i : 0 .. MESSAGES - 1) {
        if :: message[i].state == acked || message[i].state == answered -> ended++ :: else fi
    }
}
#endif

/* The end of each step: every promise holds, and it is told, with what a look shows of every message before and after,
   what is written of it, and its deliveries. */
inline done(step, how, r, m) {
    every_promise();
    printf("%e %e %d %d %e %d", step, how, r, m, outcome, got);
    for (i : 0 .. MESSAGES - 1) {
        printf(" | %e>%e %e>%e %e %d", looked[i], SEEN(i), was[i], message[i].state, message[i].answer, message[i].deliveries)
    };
    printf("\n")
#ifdef TRACE
    ; steps++; count_ended()
#endif
}

/* Every ticket that was given so far is an old one now. */
inline new_token(m) {
    for (i : 0 .. RECEIVERS - 1) {
        if :: ticket[i].on[m] == now -> ticket[i].on[m] = old :: else fi
    }
}

inline become(m, target, ticks) {
    message[m].state = target;
    message[m].left = ticks;
    message[m].owner = NOBODY;
    message[m].sure = NOBODY;
    message[m].sure_left = 0;
    if
    :: FINISHED(target) ->
        new_token(m);      /* in the stores only a requeue makes one; of a finished message no ticket counts anyway */
        if :: message[m].answer != held -> message[m].asker = no :: else fi
    :: else
    fi;
    if :: target == acked || target == answered -> message[m].life = NEVER :: else fi
}

inline write_down() {
    for (j : 0 .. MESSAGES - 1) {
        seen = SEEN(j);
        if :: seen != message[j].state -> become(j, seen, 0) :: else fi
    }
}

inline hold(r, m) {
    message[m].state = claimed;
    message[m].left = LEASE;
    message[m].owner = r;
    message[m].sure = r;
    message[m].sure_left = LEASE
}

/* The first message that is ready: a message that comes back has the place of its sending. */
inline take_first(r) {
    write_down();
    got = 0;
    do :: got < MESSAGES && message[got].state != ready -> got++ :: else -> break od;
    if
    :: got < MESSAGES ->
        PROMISE(4_one_live_owner, message[got].sure == NOBODY);
        PROMISE(5_then_set_aside, !SPENT(got));
        for (i : 0 .. MESSAGES - 1) { PROMISE(6_order, i >= got || SEEN(i) != ready) };
        new_token(got);
        ticket[r].on[got] = now;
        message[got].deliveries++;
        hold(r, got)
    :: else
    fi
}

/* ---- What a receiver can do ---- */

inline claiming(r, step) {
    begin(NONE);
    take_first(r);
    if :: got != NONE -> outcome = yes :: else fi;
    if :: step == take && got != NONE -> become(got, acked, 0) :: else fi;
    done(step, no, r, NONE)
}

inline settling(r, m, how, step) {
    begin(m);
    if
    :: COUNTS(r, m) ->
        outcome = yes;
        PROMISE(4_one_live_owner, message[m].sure == NOBODY || message[m].sure == r);
        if
        :: how == answered -> message[m].answer = (message[m].asker == waits -> held : loose); become(m, answered, 0)
        :: how == returned -> favours++; new_token(m); message[m].deliveries--; become(m, ready, 0)
        :: (how == retry || how == retry_later) && SPENT(m) -> become(m, dead, 0)
        :: how == retry && !SPENT(m) -> new_token(m); become(m, ready, 0)
        :: how == retry_later && !SPENT(m) -> new_token(m); become(m, delayed, DELAY)
        :: how == acked || how == refused || how == dead -> become(m, how, 0)
        fi
    :: else ->
        PROMISE(4_a_stale_one_changes_nothing, message[m].state == was[m] && message[m].answer == answer_before)
    fi;
    if :: step == settle_and_claim -> take_first(r) :: else fi;
    done(step, how, r, m)
}

inline extending(r, m, step) {
    begin(m);
    if :: COUNTS(r, m) -> outcome = yes; hold(r, m) :: else fi;
    done(step, no, r, m)
}

/* The process is killed; another takes its place, and knows nothing. */
inline crashing(r) {
    begin(NONE);
    outcome = yes;
    crashes++;
    for (i : 0 .. MESSAGES - 1) {
        ticket[r].on[i] = no;
        if :: message[i].owner == r -> message[i].owner = GONE :: else fi;
        if :: message[i].sure == r -> message[i].sure = NOBODY; message[i].sure_left = 0 :: else fi
    };
    done(crash, no, r, NONE)
}

proctype Receiver(byte r) {
end: do
    :: d_step { claiming(r, claim) }
    :: d_step { claiming(r, take) }
    :: d_step { crashes < CRASHES -> crashing(r) }
    od
}

/* What a receiver says about one message, also when its ticket is an old one. */
proctype Holder(byte r; byte m) {
end: do
    :: d_step { HAS_HAD(r, m) -> settling(r, m, acked, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, acked, settle_and_claim) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, answered, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, answered, settle_and_claim) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, refused, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, dead, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, retry, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, retry, settle_and_claim) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, retry_later, settle) }
    :: d_step { HAS_HAD(r, m) && (favours < FAVOURS || !COUNTS(r, m)) -> settling(r, m, returned, settle) }
    :: d_step { HAS_HAD(r, m) -> extending(r, m, extend) }
    :: d_step { HAS_HAD(r, m) -> extending(r, m, heartbeat) }
    od
}

/* ---- What others can do with one message ---- */

inline sending(m, kind) {
    begin(m);
    outcome = yes;
    sent++;
    message[m].most = (kind == fragile -> 1 : 2);
    if :: kind == brief -> message[m].life = LIFE :: else fi;
    if :: kind == question -> message[m].asker = waits :: else fi;
    become(m, (kind == later -> delayed : ready), (kind == later -> DELAY : 0));
    done(send, kind, NOBODY, m)
}

/* A person puts back what ended badly. Its life is not asked after when it is over. */
inline requeueing(m) {
    begin(m);
    write_down();
    if
    :: message[m].state == dead || message[m].state == refused || message[m].state == expired ->
        outcome = yes;
        favours++;
        new_token(m);
        message[m].deliveries = 0;
        if :: message[m].life == 0 -> message[m].life = NEVER :: else fi;
        become(m, ready, 0)
    :: else
    fi;
    done(requeue, no, NOBODY, m)
}

/* The asker waits no longer, because it gave up or was killed: its answer, come or to come, is ordinary mail. */
inline letting_go(m, step) {
    begin(m);
    outcome = yes;
    if :: step == asker_crash -> crashes++ :: else fi;
    message[m].asker = no;
    if :: message[m].answer == held -> message[m].answer = loose :: else fi;
    done(step, no, NOBODY, m)
}

/* The asker's agent takes the answer by its id (fetch), or gets its ordinary mail (receive). Both are claims. */
inline fetching(m, step) {
    begin(m);
    write_down();
    if
    :: message[m].answer == loose || (message[m].answer == held && step == fetch) ->
        outcome = yes;
        message[m].answer = taken;
        message[m].asker = no
    :: else
    fi;
    done(step, no, NOBODY, m)
}

#ifdef ONLY
#define MAY_BE(m, kind, number) (kind == ONLY)
#elif defined(ANY_KIND)
#define MAY_BE(m, kind, number) true
#else
#define MAY_BE(m, kind, number) (m == number)
#endif

proctype Others(byte m) {
end: do
    :: d_step { sent == m && MAY_BE(m, question, 0) -> sending(m, question) }
    :: d_step { sent == m && MAY_BE(m, brief, 1)    -> sending(m, brief) }
    :: d_step { sent == m && MAY_BE(m, later, 2)    -> sending(m, later) }
    :: d_step { sent == m && MAY_BE(m, fragile, 3)  -> sending(m, fragile) }
    :: d_step { sent == m && MAY_BE(m, plain, 4)    -> sending(m, plain) }
    :: d_step { sent > m && (favours < FAVOURS || !(SEEN(m) == dead || SEEN(m) == refused || SEEN(m) == expired)) ->
                requeueing(m) }
    :: d_step { message[m].asker == waits -> letting_go(m, abandon) }
    :: d_step { message[m].asker == waits && crashes < CRASHES -> letting_go(m, asker_crash) }
    :: d_step { message[m].answer != no -> fetching(m, fetch) }
    :: d_step { message[m].answer != no -> fetching(m, receive) }
    od
}

/* ---- Time, and what keeps the store small ---- */

inline ticking() {
    begin(NONE);
    outcome = yes;
    for (i : 0 .. MESSAGES - 1) {
        if :: message[i].left > 0 -> message[i].left-- :: else fi;
        if :: message[i].life > 0 && message[i].life != NEVER -> message[i].life-- :: else fi;
        if :: message[i].sure_left > 0 -> message[i].sure_left-- :: else fi;
        if :: message[i].sure_left == 0 -> message[i].sure = NOBODY :: else fi
    };
    done(tick, no, NOBODY, NONE)
}

/* Somebody sets the wall clock. Leases, delays and lives are counted in room time, and do not notice. */
inline jumping() {
    begin(NONE);
    outcome = yes;
    done(jump, no, NOBODY, NONE)
}

inline sweeping() {
    begin(NONE);
    outcome = yes;
    write_down();
    for (i : 0 .. MESSAGES - 1) { PROMISE(3_a_look_shows_what_will_be_found, message[i].state == looked[i]) };
    done(sweep, no, NOBODY, NONE)
}

#ifndef TRACE
#define CLOCKS 1
#else
#define CLOCKS 3               /* chance would let little time pass among so many processes */
#endif

active [CLOCKS] proctype Time() {
end: do
    :: d_step { sent > 0 -> ticking() }
    :: d_step { sent > 0 -> sweeping() }
    :: d_step { JUMPS && sent > 0 -> jumping() }
    od
}

#ifdef TRACE
/* For traces alone: after so many steps, or when nothing can happen any more, the next room begins, as empty as the first. */
active proctype Scribe() {
end: do
    :: d_step { steps >= TRACE || ended == MESSAGES ->
        printf("end\n");
        ended = 0;
        for (i : 0 .. MESSAGES - 1) {
            become(i, unsent, 0);
            message[i].deliveries = 0; message[i].life = NEVER; message[i].asker = no; message[i].answer = no;
            for (j : 0 .. RECEIVERS - 1) { ticket[j].on[i] = no }
        };
        sent = 0; crashes = 0; favours = 0; steps = 0 }
    od
}
#endif

init {
    byte n, k;
    atomic {
        for (n : 0 .. RECEIVERS - 1) {
            run Receiver(n);
            for (k : 0 .. MESSAGES - 1) { run Holder(n, k) }
        };
        for (k : 0 .. MESSAGES - 1) { run Others(k) };
        n = 0; k = 0
    }
}
