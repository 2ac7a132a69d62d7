/* A cell: a small named value that is changed by compare-and-set (Store.cell_read, Store.cell_write).

   What is modelled
     Writers that read a cell and later write what they made of it, and writers that write whatever is there. Between a
     reading and its writing anything may happen. Boards, sessions and reservations stand on this and on nothing else.

   What is left out
     Scans and hints; several cells, because no step touches two. */

#ifndef WRITERS
#define WRITERS 3
#endif
#ifndef WRITES
#define WRITES 5          /* writes and deletions that count, in all */
#endif

#define ANY 255           /* whatever version is there */
#define NOT_THERE 0       /* the version of a cell that is not there */

mtype = { create, change, overwrite, remove };

byte version;             /* of the cell; 0: it is not there */
byte value;               /* a counter, so that a lost addition is seen */
byte given;               /* the last version that was given out: they only grow */

typedef Writer {
    bool has_read;
    byte version;         /* as it was read */
    byte value;
    byte writes           /* not in the store: the number of writes there had been */
};
Writer writer[WRITERS];

byte writes;              /* not in the store: writes so far, */
byte sum;                 /* and what the counter must be */

hidden byte counted;

#define PROMISE(name, holds) assert(holds)

inline read(w) {
    writer[w].has_read = true;
    writer[w].version = version;
    writer[w].value = value;
    writer[w].writes = writes;
    printf("read %d %d %d\n", w, version != NOT_THERE, value)
}

/* The one step that changes a cell. It is refused when the version is another than was expected. */
inline write(w, how, expect, new_value) {
    counted = (expect == ANY || expect == version);
    if
    :: counted ->
        PROMISE(no_write_is_overwritten_unseen, expect == ANY || expect == NOT_THERE || writer[w].writes == writes);
        PROMISE(only_one_creates_it, expect != NOT_THERE || version == NOT_THERE);
        writes++;
        if
        :: how == remove -> version = NOT_THERE; value = 0; sum = 0
        :: else ->
            sum = (how == overwrite -> new_value : sum + 1);
            value = new_value;
            given++;
            version = given
        fi;
        PROMISE(no_addition_is_lost, value == sum)
    :: else
    fi;
    PROMISE(a_version_never_comes_back, version <= given && (version == NOT_THERE || !counted || version == given));
    printf("write %d %e %d %d %d\n", w, how, counted, version != NOT_THERE, value);
    writer[w].has_read = false; writer[w].version = 0; writer[w].value = 0; writer[w].writes = 0
}

#define MAY_WRITE(w) (writes < WRITES && writer[w].has_read)

active [WRITERS] proctype W() {
end: do
    :: d_step { writes < WRITES -> read(_pid) }
    :: d_step { MAY_WRITE(_pid) && writer[_pid].version != NOT_THERE ->
                write(_pid, change, writer[_pid].version, writer[_pid].value + 1) }
    :: d_step { MAY_WRITE(_pid) && writer[_pid].version != NOT_THERE -> write(_pid, remove, writer[_pid].version, 0) }
    :: d_step { MAY_WRITE(_pid) && writer[_pid].version == NOT_THERE -> write(_pid, create, NOT_THERE, 1) }
    :: d_step { MAY_WRITE(_pid) -> write(_pid, overwrite, ANY, 1) }
    od
}
