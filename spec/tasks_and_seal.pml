/* Staging: places, attempts, cuts, chunks, seals, drops, withdrawals, passes.
 *
 * Two starts of a run drive passes; each pass has a job with a task at each place, and Spark may
 * start a second attempt anywhere, at any time. An attempt, a start or a whole Spark application
 * that is killed is never scheduled again; one that continues after its driver is gone is a zombie.
 * So every kill between two steps is covered.
 *
 * Each guard has a switch, NO_<NAME>. With a guard removed spin must find a violation.
 */

#ifndef CLAIMS
#define CLAIMS 4        /* Claims in all: one for each pass of each start. */
#endif
#ifndef TWINS
#define TWINS 1         /* Second attempts in all. */
#endif
#ifndef MOVES
#define MOVES 1         /* How often the input gives a second attempt other rows. */
#endif
#ifndef LOSSES
#define LOSSES 1        /* How many staged objects are deleted. */
#endif
#ifndef ROWS_0
#define ROWS_0 3        /* The rows of each place, as bits. */
#endif
#ifndef ROWS_1
#define ROWS_1 4
#endif
#define ALL (ROWS_0 | ROWS_1)
#define RECORDS (CLAIMS * 8)
/* A record's slot is its name: claim, place, attempt, number. So slots sort like names, and a state
 * does not remember the order in which tasks wrote. The bit of record r is 1 << r.
 */
#define SLOT(e, place, attempt, number) ((e - 1) * 8 + place * 4 + attempt * 2 + number)

/* ---- The run log: its length, and what its records say. ---- */
byte loglen;
byte claims;                    /* A claim's number is also its epoch. */
bool planned[CLAIMS + 1];
bool replays[CLAIMS + 1];       /* The job replays chunks; otherwise it transforms rows. */
byte plan_at[CLAIMS + 1];       /* The log's length with the plan: a task looks at the next record. */
byte rows_left[CLAIMS + 1];     /* What the job has to do: rows, or else chunks. */
int chunks_left[CLAIMS + 1];
int sealed;                   /* The last seal: the accepted records, and the last claim that it covers. */
byte sealed_through;
bool sealed_complete;

/* ---- Task records. ---- */
int written;
byte covers[RECORDS];           /* Rows. */
byte filed[RECORDS];            /* Rows whose output is in its table files; 0: no file. */
bool chunk[RECORDS];            /* The output of the rows that it covers is a chunk. */
int supersedes[RECORDS];
bool ends[RECORDS];             /* The task's whole input is covered. */
int lost;                     /* Records whose file or chunk was deleted. */
int late;                     /* Ghost: records written after their claim was sealed. */

/* ---- Spark. ---- */
byte reported[CLAIMS + 1];      /* Places where an attempt has reported. */
byte moves;
byte twin_epoch, twin_place;    /* Where a second attempt was started. */
byte losses;
#ifdef NO_STAND_AGAIN
int ever;
#endif

/* Scratch, used only inside single steps, and not part of a state. */
hidden byte i, j, p, a, n, rows, best, worth, best_worth;
hidden int more, set;

#define PLACE(at) (at == 0 -> ROWS_0 : ROWS_1)
#define IN(r, records_) (((records_) >> (r)) & 1)

/* Each place has its own rows; the first waiting chunk is one item, the others are another. */
#define FIRST(set_) ((set_) & (-(set_)))
#define HAS_WORK(e, place) (planned[e] && ((rows_left[e] & PLACE(place)) || \
    (place == 0 -> FIRST(chunks_left[e]) : chunks_left[e] & ~FIRST(chunks_left[e]))))

/* Where a second attempt may start. Two switches narrow that, to save states: only in the first job
 * and with other rows, or only in a replay.
 */
#ifdef MOVES_FIRST
#define TWIN_AT(e, place) (e == 1 && HAS_WORK(e, place) && sealed_through < e)
#elif defined(REPLAYS_ONLY)
#define TWIN_AT(e, place) (replays[e] && HAS_WORK(e, place) && sealed_through < e)
#else
#define TWIN_AT(e, place) (HAS_WORK(e, place) && sealed_through < e)
#endif

/* Whether another attempt has durable work at this place (worker/twins.py). */
inline look_for_twin(only_earlier) {
  twin = 0; i = 0;
  do
  :: i < RECORDS ->
     if
     :: i / 2 == SLOT(e, place, (1 - attempt), 0) / 2 && (!only_earlier || attempt == 1) &&
        (covers[i] != 0 || supersedes[i] != 0) -> twin = 1
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

/* Create the next record of this attempt's log; the objects that it names exist already, and were
 * unknown until now. Used inside `atomic`.
 */
inline write(covers_, filed_, chunk_, supersedes_, ends_) {
  assert(number < 2);
  i = SLOT(e, place, attempt, number);
  written = written | (1 << i);
  covers[i] = covers_; filed[i] = filed_; chunk[i] = chunk_;
  supersedes[i] = supersedes_; ends[i] = ends_;
  if
  :: sealed_through >= e -> late = late | (1 << i)
  :: else
  fi;
  printf("%d attempt %d/%d/%d writes record %d: covers %d, files %d, chunk %d, supersedes %d\n",
         _pid, e, place, attempt, i, covers_, filed_, chunk_, supersedes_);
  number++
}

/* Pay for the next row. What an accepted record covers is not computed again while the job is the
 * run's current one; and nothing is paid for after a checkpoint at which the run had moved on.
 */
inline pay() {
  covered_rows(sealed);
  assert(loglen > plan_at[e] || !(rows & todo & (-todo)));
  assert(!stood);
  fresh = fresh | (todo & (-todo)); open = open | (todo & (-todo));
  todo = todo & (todo - 1)
}

/* Rows that durable, accepted records cover. */
inline covered_rows(accepted_) {
  rows = 0; i = 0;
  do
  :: i < RECORDS ->
     if
     :: IN(i, accepted_) -> rows = rows | covers[i]
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

/* An orphan removal deletes an object. A loss shows only when the object is looked for, so it
 * happens just before a look. Used inside `atomic`.
 */
inline steal(among) {
  do
  :: losses == LOSSES -> break
  :: losses < LOSSES ->
     if
     :: break
     :: (among) != 0 ->
        losses++;
        if
        :: which = 0
        :: which = 1
        fi;
        d_step {                                /* The first of them, or the last. */
          i = 0; n = 0;
          do
          :: i < RECORDS && !(IN(i, among) && which == 0) ->
             if
             :: IN(i, among) -> n = i
             :: else
             fi;
             i++
          :: else -> break
          od;
          if
          :: which == 0 -> n = i
          :: else
          fi;
          which = 0;
          printf("record %d loses its object\n", n);
          lost = lost | (1 << n)
        }
     fi
  od;
  skip
}

/* ---- One attempt (worker/task.py, attempt.py, checkpoints.py, replay.py). ---- */
proctype Attempt(byte e; byte place; byte attempt) {
  byte todo;            /* Rows to come. */
  byte fresh;           /* Rows since the last record. */
  byte open;            /* Rows in open table files: since the last cut. */
  int own_chunks;     /* Records whose chunks the next cut supersedes. */
  byte number, which;
  bool twin;            /* Another attempt has durable work here. */
  bool stood;           /* Ghost: at the last checkpoint the log had moved on. */

  atomic {
    if                                          /* Its job has begun. */
    :: attempt == 0 && HAS_WORK(e, place) && sealed_through < e
    :: attempt == 1 && TWIN_AT(1, 0) -> e = 1   /* A second attempt: in any job, at any place. */
    :: attempt == 1 && TWIN_AT(1, 1) -> e = 1; place = 1
    :: attempt == 1 && TWIN_AT(2, 0) -> e = 2
    :: attempt == 1 && TWIN_AT(2, 1) -> e = 2; place = 1
#if CLAIMS > 2
    :: attempt == 1 && TWIN_AT(3, 0) -> e = 3
    :: attempt == 1 && TWIN_AT(3, 1) -> e = 3; place = 1
#endif
    fi;
    if
    :: attempt == 1 -> twin_epoch = e; twin_place = place
    :: attempt == 0
    fi;
    d_step { look_for_twin(0) };
    if
    :: twin -> goto report                         /* It reports "left", and pays for nothing. */
    :: else
    fi;
    if
    :: replays[e] -> goto replay
    :: else -> todo = rows_left[e] & PLACE(place)
    fi;
    if                                          /* Read again, the input may give other rows. */
    :: attempt == 1 && moves < MOVES && rows_left[e] == ALL ->
       moves++;
       todo = (todo & (todo - 1)) | ((ALL & ~todo) & (-(ALL & ~todo)))
#ifdef MOVES_FIRST
    :: attempt == 0
#else
    :: true
#endif
    fi;
    if
    :: todo != 0 -> d_step { pay() }
    :: todo == 0 -> goto report                 /* A place without input. */
    fi
  };
rows_to_come:
  do
  :: sealed_through >= e -> break               /* Anything it does now is late: do it at once. */
  :: d_step { sealed_through < e && todo != 0 -> pay() }    /* No checkpoint is due. */
  :: sealed_through < e && todo == 0 -> break
  :: sealed_through < e && number == 0 ->                             /* A checkpoint, after any row. */
     atomic {                                   /* Look at the next number of the run log. */
       stood = (loglen > plan_at[e]);
#ifndef NO_WORKER_LOOK
       if
       :: stood -> goto report
       :: else
       fi
#endif
     };
     if
     :: atomic {                                /* The first checkpoint: look for a twin. */
          attempt == 1 || (twin_epoch == e && twin_place == place) ->
          d_step { look_for_twin(0) };
          if
          :: twin -> goto report
          :: else
          fi
        }
     :: attempt == 0 && !(twin_epoch == e && twin_place == place)      /* There is none. */
     fi;
     atomic {
       if                                       /* A chunk, or a cut when the files are full. */
       :: d_step {
            own_chunks = 1 << SLOT(e, place, attempt, number);
            write(fresh, 0, 1, 0, 0); fresh = 0
          }
       :: d_step { write(fresh, open, 0, own_chunks, 0); fresh = 0; open = 0 }
       fi;
       if                                       /* The first attempt has no earlier one. */
       :: attempt == 0 && todo != 0 -> d_step { pay() }; goto rows_to_come
       :: attempt == 0 && todo == 0 -> goto rows_to_come
       :: attempt == 1
       fi
     };
     atomic {                                   /* Both may have looked before either wrote. */
       d_step { look_for_twin(1) };
       if
       :: twin -> goto report
       :: else
       fi;
       if
       :: todo != 0 -> d_step { pay() }
       :: todo == 0
       fi
     }
  od;
  atomic {                                      /* The last cut. */
    d_step {
#ifdef NO_SUPERSEDES
      own_chunks = 0;
#endif
      write(fresh, open, 0, own_chunks, 1)
    };
    goto report
  };

replay:
  atomic {                                      /* The first chunk is one item, the others are another. */
    own_chunks = chunks_left[e] & (-chunks_left[e]);
    if
    :: place == 1 -> own_chunks = chunks_left[e] & ~own_chunks
    :: else
    fi;
    if                                          /* A second attempt may get other items. */
    :: attempt == 1 && moves < MOVES -> moves++; own_chunks = chunks_left[e] & ~own_chunks
    :: true
    fi;
    steal(own_chunks);
    d_step {
      own_chunks = own_chunks & ~lost;          /* Damaged chunks are left out, and reported. */
      covered_rows(own_chunks);
      fresh = rows
    };
    if
    :: own_chunks == 0 -> goto report
    :: else
    fi
  };
  d_step { write(0, fresh, 0, own_chunks, 1) };

report:
  atomic { skip; d_step {
    if
    :: sealed_through < e -> reported[e] = reported[e] | (1 << place)
    :: else
    fi;
    todo = 0; fresh = 0; open = 0; own_chunks = 0; number = 0; twin = 0; stood = 0
  } }
}

/* ---- The driver's sums over records. All are pure: work.py. ---- */

/* work.waiting: accepted chunks that no accepted record has superseded. Result: `set`. */
inline waiting(accepted_) {
  set = 0; more = 0; i = 0;
  do
  :: i < RECORDS ->
     if
     :: IN(i, accepted_) -> more = more | supersedes[i]
     :: else
     fi;
     i++
  :: else -> break
  od;
#ifdef NO_STAND_AGAIN
  more = more | ever;
#endif
  i = 0;
  do
  :: i < RECORDS ->
     if
     :: IN(i, accepted_) && chunk[i] && !IN(i, more) -> set = set | (1 << i)
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

/* work.without: drop the records in `set` from `accepted`, and those that hold their rows. */
inline without() {
  do
  :: true ->
     more = 0;
#ifndef NO_DROP_WHOLE
     i = 0;
     do
     :: i < RECORDS ->
        if
        :: IN(i, accepted) && !IN(i, set) && (supersedes[i] & set) -> more = more | (1 << i)
        :: else
        fi;
        i++
     :: else -> break
     od;
#endif
     set = set | more;
     if
     :: more == 0 -> break
     :: else
     fi
  od;
#ifdef NO_STAND_AGAIN
  i = 0;
  do
  :: i < RECORDS ->
     if
     :: IN(i, accepted) && IN(i, set) -> ever = ever | supersedes[i]
     :: else
     fi;
     i++
  :: else -> break
  od;
#endif
  accepted = accepted & ~set; set = 0; more = 0; i = 0
}

/* withdraw.py: leave out what has lost a file, or a chunk that waits. */
inline withdraw() {
  do
  :: true ->
     waiting(accepted);
     more = set; set = 0; i = 0;
     do
     :: i < RECORDS ->
        if
        :: IN(i, accepted) && IN(i, lost) && (filed[i] != 0 || IN(i, more)) ->
           set = set | (1 << i)
        :: else
        fi;
        i++
     :: else -> break
     od;
     if
     :: set == 0 -> break
     :: else -> changed = 1; complete = 0; without()
     fi
  od;
  i = 0; more = 0
}

/* seal.py gather: per place the complete log, or else the one that covers most. */
inline gather(e, seen_) {
  p = 0;
  do
  :: p < 2 ->
     best = 2; best_worth = 0; a = 0;
     do
     :: a < 2 ->
        worth = 0; n = 0;
        do                                      /* A log counts up to the first gap. */
        :: n < 2 ->
           j = SLOT(e, p, a, n);
           if
           :: IN(j, seen_) ->
              worth = worth + 2 + (covers[j] & 1) * 8 + ((covers[j] >> 1) & 1) * 8 +
                      ((covers[j] >> 2) & 1) * 8 + ((covers[j] >> 3) & 1) * 8 + ends[j] * 64
           :: else
#ifndef NO_PREFIX
              -> n = 2
#endif
           fi;
           n++
        :: else -> break
        od;
        if
        :: worth > best_worth -> best = a; best_worth = worth
        :: else
        fi;
        a++
     :: else -> break
     od;
     a = 0;
     do
     :: a < 2 ->
        if
#ifdef NO_ONE_LOG
        :: true ->
#else
        :: a == best ->
#endif
           n = 0;
           do
           :: n < 2 ->
              j = SLOT(e, p, a, n);
              if
              :: IN(j, seen_) -> accept(j)
              :: else
#ifndef NO_PREFIX
                 -> n = 2
#endif
              fi;
              n++
           :: else -> break
           od
        :: else
        fi;
        a++
     :: else -> break
     od;
     p++
  :: else -> break
  od;
  p = 0; a = 0; n = 0; i = 0; j = 0; best = 0; worth = 0; best_worth = 0; set = 0; more = 0
}

/* work.plus: refuse what supersedes an unknown chunk, or one that another has superseded. */
inline accept(r) {
  set = 0; more = 0; i = 0;
  do
  :: i < RECORDS ->
     if
     :: IN(i, accepted) ->
        more = more | supersedes[i];
        if
        :: chunk[i] -> set = set | (1 << i)
        :: else
        fi
     :: else
     fi;
     i++
  :: else -> break
  od;
  if
  :: IN(r, accepted)
#ifndef NO_TAKEN
  :: !IN(r, accepted) && (supersedes[r] & more)
#endif
#ifndef NO_PREFIX
  :: !IN(r, accepted) && (supersedes[r] & ~set)
#endif
  :: else ->
     accepted = accepted | (1 << r)
  fi
}

/* Each row is covered by one accepted record, and its output is in one file of one record. */
inline check_exactly_once() {
  i = 0;
  do
  :: i < 4 ->
     if
     :: (ALL >> i) & 1 ->
        n = 0; a = 0; j = 0;
        do
        :: j < RECORDS ->
           if
           :: IN(j, accepted) ->
              n = n + ((covers[j] >> i) & 1);
              a = a + ((filed[j] >> i) & 1)
           :: else
           fi;
           j++
        :: else -> break
        od;
        assert(n == 1);
        assert(a == 1)
     :: else
     fi;
     i++
  :: else -> break
  od;
  waiting(accepted);
#ifndef NO_STAND_AGAIN
  assert(set == 0);
#endif
  i = 0; j = 0; n = 0; a = 0; set = 0; more = 0
}

/* run_log.py append: at the next number that this driver knows of. Used inside `atomic`. */
inline append() {
#ifdef NO_FENCE
  known = loglen;
#endif
  if
  :: loglen != known -> goto stop               /* A later claim is there: fenced. */
  :: loglen == known ->
     assert(claims == own);                     /* A fenced driver does not append. */
     loglen++; known = loglen
  fi
}

/* To save states: the plan of a sealed claim is never read again, nor are records of its tasks that
 * the seal has not accepted. What such tasks write from now on stays, and must not count.
 */
inline forget() {
  i = 0;
  do
  :: i < RECORDS ->
     if
     :: i / 8 + 1 <= sealed_through && !IN(i, sealed) ->
        covers[i] = 0; filed[i] = 0; chunk[i] = 0; supersedes[i] = 0; ends[i] = 0;
        written = written & ~(1 << i); lost = lost & ~(1 << i)
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 1;
  do
  :: i <= sealed_through ->
     plan_at[i] = 0; rows_left[i] = 0; chunks_left[i] = 0; replays[i] = 0; reported[i] = 0;
     i++
  :: else -> break
  od;
  i = 0
}

inline seal() {
    if
    :: changed ->
       append();
       printf("%d seals %d through claim %d, complete %d\n", _pid, accepted, through, complete);
       /* What a task writes after its claim is sealed never counts. */
       assert(!(accepted & late));
       sealed = accepted; sealed_through = through; sealed_complete = complete; changed = 0;
       if
       :: complete -> d_step { check_exactly_once() }
       :: else
       fi;
       d_step { forget() }
    :: else
    fi
}

/* Read the task logs of one epoch. A listing comes in pages: here the first record, then all. */
#define EPOCH(e) (255 << ((e - 1) * 8))
inline first_page(epoch) {
  seen = written & (1 << SLOT(epoch, 0, 0, 0))
}
inline second_page(epoch) {
  seen = seen | (written & EPOCH(epoch) & ~(1 << SLOT(epoch, 0, 0, 0)));
  gather(epoch, seen);
  printf("%d has read the tasks of claim %d: accepts %d\n", _pid, epoch, accepted);
  seen = 0; changed = 1; complete = 0; through = epoch
}

/* ---- One start (drive.py, passes.py, workbook.py). ---- */
proctype Start(byte which) {
  byte known, own, through, epoch, before;
  int accepted, seen, before_waiting;
  bool changed, complete, passed;

  atomic {                                      /* Claim; the records before it are fixed. */
    claims < CLAIMS && (which == 0 || claims > 0);          /* By symmetry, one comes first. */
    which = 0;
    claims++; loglen++; known = loglen; own = claims;
    printf("%d claims: %d\n", _pid, own);
    accepted = sealed; through = sealed_through; complete = sealed_complete;
#ifdef NO_THROUGH
    epoch = 1
#else
    epoch = through + 1
#endif
  };
  do                                            /* Seal what earlier drivers have left. */
#ifndef NO_FENCE
  :: epoch < own && claims != own -> goto stop  /* Fenced, whenever it finds out. */
#endif
  :: atomic { epoch < own && planned[epoch] -> first_page(epoch) };
     d_step { second_page(epoch); epoch++ }
  :: epoch < own && !planned[epoch] -> epoch++
  :: epoch >= own -> epoch = 0; break
  od;
#ifndef NO_WITHDRAW
  atomic { steal(accepted); d_step { withdraw() } };
#endif
#ifndef NO_SEAL_FIRST
  atomic { seal() };
#endif

next:
  do
  :: complete ->                                /* sink.check, then the intent. */
     atomic {
       steal(accepted);
#ifndef NO_WITHDRAW
       d_step { withdraw() };
#endif
       if
       :: !complete
       :: complete ->
          append();
          d_step {
            check_exactly_once();
            i = 0;
            do
            :: i < RECORDS ->
               assert(!(IN(i, accepted) && IN(i, lost) && filed[i] != 0));
               i++
            :: else -> break
            od;
            i = 0
          };
          goto stop
       fi
     };
     atomic { seal() }
  :: !complete ->
     atomic {                                   /* check_input.py: leave out what is covered twice. */
     d_step {
       set = 0;
#ifndef NO_DUPLICATE_CHECK
       i = 0;
       do
       :: i < RECORDS ->
          j = 0;
          do
          :: j < RECORDS ->
             if
             :: i < j && IN(i, accepted) && IN(j, accepted) &&
                (covers[i] & covers[j]) -> set = set | (1 << j)
             :: else
             fi;
             j++
          :: else -> break
          od;
          i++
       :: else -> break
       od;
       if
       :: set != 0 ->
          /* This happens only if the input gave other rows. */
          assert(moves > 0);
          changed = 1;
          without()
       :: else
       fi;
#endif
       covered_rows(accepted);
       before = rows;
       waiting(accepted);
       before_waiting = set;
       i = 0; j = 0; set = 0; more = 0
     };
       if
#ifdef NO_SUMS
       :: before != ALL && !passed -> before_waiting = 0
       :: (before == ALL || passed) && before_waiting != 0
       :: (before == ALL || passed) && before_waiting == 0 -> complete = 1; changed = 1
#else
       :: before != ALL -> before_waiting = 0   /* Rows are missing. */
#ifdef NO_REPLAY
       :: before == ALL -> complete = 1; changed = 1
#else
       :: before == ALL && before_waiting != 0  /* Chunks wait. */
       :: before == ALL && before_waiting == 0 -> complete = 1; changed = 1
#endif
#endif
       fi;
#ifdef NO_SEAL_FIRST
       if
       :: complete -> seal()
       :: else
       fi;
#else
       seal();
#endif
       if
       :: complete -> before = 0; before_waiting = 0; goto next
       :: else
       fi
     };
     if
     :: passed ->                               /* Claim the next pass: fenced like any record. */
        atomic { claims < CLAIMS -> append(); claims++; own = claims }
     :: !passed
     fi;
     atomic {                                   /* Plan, and start the job. */
       append();
       printf("%d plans claim %d: has rows %d, chunks waiting %d\n", _pid, own, before, before_waiting);
       planned[own] = 1; plan_at[own] = loglen;
       chunks_left[own] = before_waiting; replays[own] = (before_waiting != 0);
       rows_left[own] = (before_waiting != 0 -> 0 : ALL & ~before);
#ifdef NO_ANTI_JOIN
       rows_left[own] = (before_waiting != 0 -> 0 : ALL);
#endif
       before = 0; before_waiting = 0
     };
     if
#ifndef NO_FENCE
     :: claims != own -> goto stop              /* Fenced, whenever it finds out. */
#endif
     :: atomic {                                /* The job is done. */
       ((reported[own] & 1) || !HAS_WORK(own, 0)) && ((reported[own] & 2) || !HAS_WORK(own, 1)) ->
       first_page(own)
     }
     fi;
     d_step {
       second_page(own);
       passed = 1
#ifndef NO_WITHDRAW
       ; withdraw()                               /* Replay has found damaged chunks. */
#endif
     }
  od;
stop:
  atomic { skip; d_step {
    known = 0; own = 0; through = 0; epoch = 0; before = 0;
    accepted = 0; seen = 0; before_waiting = 0; changed = 0; complete = 0; passed = 0
  } }
}

init {
  byte e;

  atomic {
    run Start(0);
#ifndef ONE_START
    run Start(1);
#endif
    e = 1;
    do
    :: e <= CLAIMS -> run Attempt(e, 0, 0); run Attempt(e, 1, 0); e++
    :: e > CLAIMS -> break
    od;
    e = 0;
    do
    :: e < TWINS -> run Attempt(0, 0, 1); e++
    :: e == TWINS -> break
    od;
    e = 0
  }
}
