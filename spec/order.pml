/* Order keys and withdrawing, as every store keeps them (src/postroom/stores/contract.py).

   What is modelled
     Messages of one order key in one mailbox, which are delivered one at a time and in order: each that comes behind
     another is blocked until that has ended. Their sender takes messages back that no receiver has, replaces them, or
     debounces them. Every step is one call of the contract, and as there it happens whole.

   What is left out
     All that message.pml has and that does not touch the order: askers and answers, heartbeats, the wall clock. Other
     keys, other mailboxes and other senders who debounce: none of them knows of this key. Priorities, which do not count
     within a key. A death is seen at once.

   Time and tickets are counted as in message.pml. */

#ifndef RECEIVERS
#define RECEIVERS 2       /* processes that compete for the messages */
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef CRASHES
#define CRASHES 1         /* receivers that are killed, in all */
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

mtype = { unsent, ready, delayed, blocked, claimed, acked, expired, dead, withdrawn };           /* states */
mtype = { no, old, now };                                                                        /* tickets */
mtype = { send, claim, settle, settle_and_claim, extend, withdraw, requeue, sweep, tick, crash };   /* the steps */
mtype = { plain, free, brief, later, fragile, replacing, debounced,        /* what is sent: free ones have no key */
          retry, retry_later, returned,                                    /* what else is said in settling, */
          own, strange, behind, in_place };         /* who withdraws, and where a message that is put back comes */
mtype = { yes, nothing };          /* and their outcomes: it was done; nothing was given, and nothing has changed */

typedef Message {
    mtype state = unsent;      /* as it is written down; SEEN(m) is what a look shows */
    bit keyed;                 /* whether it has the order key */
    bit back;                  /* whether it was put back */
    byte place;                /* in the order of the key */
    byte deliveries;
    byte most;                 /* deliveries that are allowed */
    byte left;                 /* until the lease ends, or the delay */
    byte life = NEVER;         /* until it expires */
    byte owner = NOBODY;       /* the receiver that claimed it */
    byte sure = NOBODY;        /* not in the store: the receiver that may rely on having it, */
    byte sure_left             /* and for how long, by its own clock */
};
Message message[MESSAGES];

typedef Tickets { mtype on[MESSAGES] = no };
Tickets ticket[RECEIVERS];     /* the last ticket of each receiver for each message */

byte sent, places, crashes, favours;   /* how many so far */
#ifdef TRACE
byte steps, ended;
#endif

/* What the clock did counts, though nobody has written it down yet: states.judge. Of a blocked message it ends the life
   alone; that the one before it has ended is seen when that is written down. */
#define OVER(m)   (message[m].state == claimed && (message[m].left == 0 || message[m].owner == GONE))
#define SPENT(m)  (message[m].deliveries >= message[m].most)
#define WAITS(s)  (s == ready || s == delayed || s == blocked)
#define SEEN(m)   (OVER(m) && SPENT(m) -> dead : ((OVER(m) || WAITS(message[m].state)) && message[m].life == 0 -> expired : \
                  (OVER(m) || (message[m].state == delayed && message[m].left == 0) -> ready : message[m].state)))
#define FINISHED(s) (s == acked || s == expired || s == dead || s == withdrawn)
#define ENDED_BADLY(s) (s == expired || s == dead)
#define IN_LINE(m) (message[m].keyed && message[m].state != unsent && !FINISHED(message[m].state))
#define COMES_BACK(m) (message[m].left > 0 && message[m].left <= LEASE && message[m].owner != GONE) /* time does it */

/* The fence. The end of a lease takes nothing from its holder; only the next claim does, and a withdrawal. */
#define COUNTS(r, m) (ticket[r].on[m] == now && (message[m].state == claimed || message[m].state == ready))
#define HAS_HAD(r, m) (ticket[r].on[m] != no)

/* Scratch of one step; never part of a state. */
hidden byte i, j, got, first, others;
hidden mtype outcome, seen, was[MESSAGES], looked[MESSAGES];

/* ---- The promises (docs/guarantees.md) ---- */

#define PROMISE(name, holds) assert(holds)

inline every_promise() {
    others = 0;
    for (i : 0 .. MESSAGES - 1) {
        PROMISE(1_a_send_that_returned_is_kept, (i < sent) == (message[i].state != unsent));
        PROMISE(3_only_settling_ends_it, was[i] != acked || message[i].state == acked);
        PROMISE(4_one_live_owner, message[i].sure == NOBODY || (COUNTS(message[i].sure, i) && SEEN(i) == claimed));
        PROMISE(5_then_set_aside, message[i].deliveries <= message[i].most);
        PROMISE(5_at_least_once, i >= sent || FINISHED(SEEN(i)) || SEEN(i) == ready || SEEN(i) == blocked || COMES_BACK(i));
        PROMISE(withdrawn_is_never_delivered, was[i] != withdrawn || message[i].state == withdrawn);
        PROMISE(withdrawn_is_what_no_receiver_has, message[i].state != withdrawn || message[i].sure == NOBODY);
        if :: IN_LINE(i) && message[i].state != blocked -> others++ :: else fi
    };
    PROMISE(6_one_of_a_key_at_a_time, others <= 1);
    for (i : 0 .. MESSAGES - 1) {
        PROMISE(6_the_next_of_a_key_passes, message[i].state != blocked || others == 1)
    }
}

/* ---- Parts of the steps ---- */

inline begin() {
    got = NONE;
    outcome = nothing;
    for (i : 0 .. MESSAGES - 1) { was[i] = message[i].state; looked[i] = SEEN(i) }
}

#ifdef TRACE
inline count_ended() {
    ended = 0;
    for (i : 0 .. MESSAGES - 1) {
        if :: message[i].state == acked || message[i].state == withdrawn -> ended++ :: else fi
    }
}
#endif

/* The end of each step, told as message.pml does. */
inline done(step, how, r, m) {
    every_promise();
    printf("%e %e %d %d %e %d", step, how, r, m, outcome, got);
    for (i : 0 .. MESSAGES - 1) {
        printf(" | %e>%e %e>%e %e %d", looked[i], SEEN(i), was[i], message[i].state, no, message[i].deliveries)
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
    if :: FINISHED(target) -> new_token(m) :: else fi;
    if :: target == acked || target == withdrawn -> message[m].life = NEVER :: else fi
}

/* The message that keeps the others of the key waiting, or NONE. */
inline find_first() {
    first = 0;
    do
    :: first < MESSAGES && !(IN_LINE(first) && message[first].state != blocked) -> first++
    :: else -> break
    od
}

/* Where nothing keeps the others waiting, the next of them passes: it is ready, or its delay counts on. */
inline let_the_next_pass() {
    find_first();
    if
    :: first == NONE ->
        for (i : 0 .. MESSAGES - 1) {
            if
            :: message[i].state == blocked && (first == NONE || message[i].place < message[first].place) -> first = i
            :: else
            fi
        };
        if :: first != NONE -> message[first].state = (message[first].left > 0 -> delayed : ready) :: else fi
    :: else
    fi
}

inline write_down() {
    for (j : 0 .. MESSAGES - 1) {
        seen = SEEN(j);
        if :: seen != message[j].state -> become(j, seen, 0) :: else fi
    };
    let_the_next_pass()
}

inline hold(r, m) {
    message[m].state = claimed;
    message[m].left = LEASE;
    message[m].owner = r;
    message[m].sure = r;
    message[m].sure_left = LEASE
}

/* The first message that is ready. One that was put back may stand before one that it has to wait for. */
inline take_first(r) {
    write_down();
    got = 0;
    do :: got < MESSAGES && message[got].state != ready -> got++ :: else -> break od;
    if
    :: got < MESSAGES ->
        PROMISE(4_one_live_owner, message[got].sure == NOBODY);
        PROMISE(5_then_set_aside, !SPENT(got));
        for (i : 0 .. MESSAGES - 1) {
            PROMISE(6_one_of_a_key_at_a_time, !message[got].keyed || !message[i].keyed || message[i].sure == NOBODY);
            PROMISE(6_order_within_a_key, !message[got].keyed || !IN_LINE(i) || message[i].place >= message[got].place || message[i].back)
        };
        new_token(got);
        ticket[r].on[got] = now;
        message[got].deliveries++;
        hold(r, got)
    :: else
    fi
}

/* ---- What a receiver can do ---- */

inline claiming(r) {
    begin();
    take_first(r);
    if :: got != NONE -> outcome = yes :: else fi;
    done(claim, no, r, NONE)
}

inline settling(r, m, how, step) {
    begin();
    if
    :: COUNTS(r, m) ->
        outcome = yes;
        PROMISE(4_one_live_owner, message[m].sure == NOBODY || message[m].sure == r);
        if
        :: how == returned -> favours++; new_token(m); message[m].deliveries--; become(m, ready, 0)
        :: (how == retry || how == retry_later) && SPENT(m) -> become(m, dead, 0)
        :: how == retry && !SPENT(m) -> new_token(m); become(m, ready, 0)
        :: how == retry_later && !SPENT(m) -> new_token(m); become(m, delayed, DELAY)
        :: how == acked || how == dead -> become(m, how, 0)
        fi;
        let_the_next_pass()
    :: else ->
        PROMISE(4_a_stale_one_changes_nothing, message[m].state == was[m])
    fi;
    if :: step == settle_and_claim -> take_first(r) :: else fi;
    done(step, how, r, m)
}

inline extending(r, m) {
    begin();
    if :: COUNTS(r, m) -> outcome = yes; hold(r, m) :: else fi;
    done(extend, no, r, m)
}

/* The process is killed; another takes its place, and knows nothing. */
inline crashing(r) {
    begin();
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
    :: d_step { claiming(r) }
    :: d_step { crashes < CRASHES -> crashing(r) }
    od
}

/* What a receiver says about one message, also when its ticket is an old one. */
proctype Holder(byte r; byte m) {
end: do
    :: d_step { HAS_HAD(r, m) -> settling(r, m, acked, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, acked, settle_and_claim) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, dead, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, retry, settle) }
    :: d_step { HAS_HAD(r, m) -> settling(r, m, retry_later, settle) }
    :: d_step { HAS_HAD(r, m) && (favours < FAVOURS || !COUNTS(r, m)) -> settling(r, m, returned, settle) }
    :: d_step { HAS_HAD(r, m) -> extending(r, m) }
    od
}

/* ---- What senders and others can do with one message ---- */

/* Take one message back, where no receiver has it; a claim that has ended keeps nobody from it. */
inline take_back(m) {
    if
    :: WAITS(message[m].state) ->
        outcome = yes;
        PROMISE(withdrawn_is_what_no_receiver_has, message[m].sure == NOBODY);
        become(m, withdrawn, 0)
    :: else
    fi
}

inline withdrawing(m, who) {
    begin();
    write_down();
    if :: who == own -> take_back(m) :: else fi;
    let_the_next_pass();
    done(withdraw, who, NOBODY, m)
}

inline sending(m, kind) {
    begin();
    sent++;
    message[m].keyed = (kind != free);
    message[m].place = places;
    places++;
    message[m].most = (kind == fragile -> 1 : 2);
    if :: kind == brief -> message[m].life = LIFE :: else fi;
    if :: kind == replacing || kind == debounced -> write_down() :: else fi;
    find_first();
    message[m].left = (kind == later || kind == debounced -> DELAY : 0);
    message[m].state = (kind != free && first != NONE -> blocked : (message[m].left > 0 -> delayed : ready));
    if
    :: kind == replacing -> take_back((m + MESSAGES - 1) % MESSAGES)
    :: kind == debounced ->
        for (j : 0 .. MESSAGES - 1) { if :: j < m && message[j].keyed -> take_back(j) :: else fi }
    :: else
    fi;
    let_the_next_pass();
    outcome = yes;
    done(send, kind, NOBODY, m)
}

inline count_others(m) {
    others = 0;
    for (i : 0 .. MESSAGES - 1) { if :: i != m && IN_LINE(i) && message[m].keyed -> others++ :: else fi }
}

/* A person puts back what ended badly: it waits for the one that comes first now, and then comes at its old place, or
   behind the others. A store does the one or the other; with SURE, only what is the same in both. */
inline requeueing(m, where) {
    begin();
    write_down();
    count_others(m);
    if
    :: ENDED_BADLY(message[m].state) ->
        outcome = yes;
        favours++;
        new_token(m);
        message[m].deliveries = 0;
        message[m].back = 1;
        if :: message[m].life == 0 -> message[m].life = NEVER :: else fi;
        if :: where == behind -> message[m].place = places; places++ :: else fi;
        become(m, (others > 0 -> blocked : ready), 0)
    :: else
    fi;
    done(requeue, where, NOBODY, m)
}

#define MAY_COME_BACK(m) (sent > m && (favours < FAVOURS || !ENDED_BADLY(SEEN(m))))
#ifdef SURE
#define OPEN_BESIDE(m, n) (m != n && n < MESSAGES && IN_LINE(n % MESSAGES))
#define IS_SURE(m) (OPEN_BESIDE(m, 0) + OPEN_BESIDE(m, 1) + OPEN_BESIDE(m, 2) + OPEN_BESIDE(m, 3) <= 1)
#else
#define IS_SURE(m) true
#endif

#ifdef ONLY
#define MAY_BE(m, kind, number) (kind == ONLY || (kind == plain && m > 0))
#elif defined(ANY_KIND)
#define MAY_BE(m, kind, number) true
#else
#define MAY_BE(m, kind, number) (m == number || kind == plain)
#endif

proctype Others(byte m) {
end: do
    :: d_step { sent == m && MAY_BE(m, plain, 0)           -> sending(m, plain) }
    :: d_step { sent == m && MAY_BE(m, brief, 1)           -> sending(m, brief) }
    :: d_step { sent == m && MAY_BE(m, later, 1)           -> sending(m, later) }
    :: d_step { sent == m && MAY_BE(m, fragile, 0)         -> sending(m, fragile) }
    :: d_step { sent == m && MAY_BE(m, free, 3)            -> sending(m, free) }
    :: d_step { sent == m && m > 0 && MAY_BE(m, replacing, 2) -> sending(m, replacing) }
    :: d_step { sent == m && m > 0 && MAY_BE(m, debounced, 2) -> sending(m, debounced) }
    :: d_step { sent > m -> withdrawing(m, own) }
    :: d_step { sent > m -> withdrawing(m, strange) }
    :: d_step { MAY_COME_BACK(m) && IS_SURE(m) -> requeueing(m, behind) }
#ifndef SURE
    :: d_step { MAY_COME_BACK(m) -> requeueing(m, in_place) }
#endif
    od
}

/* ---- Time, and what keeps the store small ---- */

inline ticking() {
    begin();
    outcome = yes;
    for (i : 0 .. MESSAGES - 1) {
        if :: message[i].left > 0 -> message[i].left-- :: else fi;
        if :: message[i].life > 0 && message[i].life != NEVER -> message[i].life-- :: else fi;
        if :: message[i].sure_left > 0 -> message[i].sure_left-- :: else fi;
        if :: message[i].sure_left == 0 -> message[i].sure = NOBODY :: else fi
    };
    done(tick, no, NOBODY, NONE)
}

inline sweeping() {
    begin();
    outcome = yes;
    write_down();
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
    od
}

#ifdef TRACE
/* For traces alone: after so many steps, or when nothing can happen any more, the next room begins, as empty as the first. */
active proctype Scribe() {
end: do
    :: d_step { steps >= TRACE || ended == MESSAGES ->
        printf("end\n");
        ended = 0;
        for (j : 0 .. MESSAGES - 1) {
            become(j, unsent, 0);
            message[j].deliveries = 0; message[j].life = NEVER; message[j].back = 0;
            for (i : 0 .. RECEIVERS - 1) { ticket[i].on[j] = no }
        };
        sent = 0; places = 0; crashes = 0; favours = 0; steps = 0 }
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
