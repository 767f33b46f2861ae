/* The commit: claim, intent, post, refusal, receipt, abort, resolve and sweep against one table.
 *
 * Two starts of the run, one abort and one sweep run at the same time, with a catalog that delivers
 * each post at any time, or never, and others that use the same table. A killed process is one that
 * is never scheduled again, so every kill between two steps is covered.
 *
 * Each guard has a switch, NO_<NAME>. With a guard removed spin must find a violation.
 * HOLE_<NAME> switches add what the protocol is known not to survive; see README.md.
 */

#ifndef ACTS
#define ACTS 3      /* How many things the other users of the table do. */
#endif
#ifndef TRIES
#define TRIES 2     /* How often one start posts its data. */
#endif
#ifndef LOOKS
#define LOOKS 1     /* How many empty snapshots all resolvers post; then they give up. */
#endif
#define SLOTS 9    /* Snapshots that exist, or are about to. Slot 0 is "none". */
#define LOG 11      /* Records of the run log. Number 0 is "none". */

/* What a look at the table shows. */
#define NOTHING 0
#define PRESENT 1   /* Landed, and in the branch's history. */
#define REMOVED 2   /* Landed, and rolled back or replaced. */
#define UNSURE  3   /* Landed; history no longer shows whether it is still there. */
#define RAISES  4   /* Rewound, beyond the horizon, or another table: stop with an error. */
#define OUT     5   /* In resolve: the table is not provably the run's. RAISES: its state is unknown. */

/* Kinds of records. */
#define CLAIM 1
#define INTENT 2
#define RECEIPT 3
#define ABORT 4
#define REFUSED 5

/* ---- The run log. A reader knows a prefix of it; a record never changes. ---- */
byte loglen;
byte kind[LOG];
byte claim_at;          /* Number of the last claim. */
byte receipt_at;        /* Number of the first receipt, and the snapshot that it names. */
byte receipt_slot;
byte abort_at;
bool abort_word;        /* It says that the table is gone for good: the user's statement. */
byte intent_at[SLOTS];  /* Number of a data snapshot's intent. */
byte refused_at[SLOTS]; /* Number of the record that says that it was refused. */

/* ---- The table. ---- */
bool ours = 1;          /* The name leads to the run's table (its UUID is the one we know). */
byte head;              /* The branch's snapshot; 0: the branch has none. */
byte last_seq;          /* last-sequence-number. */
byte mark;              /* The snapshot that the run's mark names. */
byte horizon;
bool expired;           /* History was expired. */

bool sent[SLOTS];       /* A post that has not landed, but may. */
byte parent[SLOTS];
byte seq[SLOTS];
byte files[SLOTS];      /* 0: an empty or foreign snapshot; else its set of staged files. */
bool listed[SLOTS];     /* The table's metadata lists it. */
bool traced[SLOTS];     /* Its manifest list holds a manifest that our data snapshot added. */
bool holds[SLOTS];      /* Ghost: our data snapshot is in its true history. */

/* ---- Ghosts, for the assertions. ---- */
byte landed;            /* The run's data snapshot that landed. */
bool given_up;          /* "Aborted" was reported, without doubt. */
bool deleted[3];        /* The sets of staged files that a sweep has deleted. */
byte looks;             /* Empty snapshots that were posted to resolve. */

/* Scratch, used only inside single steps, and not part of a state. */
hidden byte i, j, ended;

#define KNOWS_RECEIPT (receipt_at != 0 && receipt_at <= known)
#ifdef NO_ABORT_FENCE
#define KNOWS_ABORT 0
#else
#define KNOWS_ABORT (abort_at != 0 && abort_at <= known)
#endif
#ifdef NO_FENCE
#define FENCED 0
#else
#define FENCED (claim_at > own && claim_at <= known || KNOWS_ABORT)
#endif

/* Posts that may have landed, or may still land, as far as the log shows (doubtful_intents). */
#define ANSWERED(slot) (refused_at[slot] != 0 && refused_at[slot] <= known)
#ifdef NO_REFUSED
#define DOUBTED(slot) (intent_at[slot] != 0 && intent_at[slot] <= known)
#else
#define DOUBTED(slot) (intent_at[slot] != 0 && intent_at[slot] <= known && !ANSWERED(slot))
#endif

/* ---- One look: load the table again, and find the mark (commit.py look, marks.py). ---- */
inline look() {
  d_step {
    found = 0; state = NOTHING; v_head = head; v_next = last_seq + 1; i = 0; ended = 0;
    if
#ifndef NO_UUID
    :: !ours -> state = RAISES
#endif
    :: else ->
       if
       :: mark != 0 ->
          if
          :: seq[mark] > last_seq -> state = RAISES     /* The catalog was rewound. */
          :: else -> found = mark
          fi
       :: else ->
          /* marks.py _unmarked: the snapshot is listed, is a parent, or has left a manifest. */
          i = 1;
          do
          :: i < SLOTS ->
             if
             :: DOUBTED(i) ->
                if
                :: listed[i] || (landed == i && head != 0 && traced[head]) -> found = i
                :: else ->
                   j = 1;
                   do
                   :: j < SLOTS ->
                      if
                      :: listed[j] && parent[j] == i -> found = i
                      :: else
                      fi;
                      j++
                   :: else -> break
                   od;
                   j = 0
                fi;
#ifndef NO_HORIZON
                if
                :: found == 0 && seq[i] <= horizon -> state = RAISES
                :: else
                fi
#endif
             :: else
             fi;
             i++
          :: else -> break
          od;
          if
          :: found != 0 -> state = NOTHING
          :: else
          fi
       fi;
       if
       :: found != 0 ->
#ifdef NO_REMOVED_CHECK
          state = PRESENT
#else
          /* marks.py _is_present: walk the ancestors of the branch. */
          i = head;
          do
          :: i == 0 -> state = REMOVED; break
          :: i != 0 && (i == found || parent[i] == found) -> state = PRESENT; break
          :: i != 0 && i != found && parent[i] != found &&
             (seq[i] < seq[found] || parent[i] == 0) ->
             ended = (parent[i] == 0 && !listed[found] && seq[i] > seq[found]); break
          :: i != 0 && i != found && parent[i] != found &&
             seq[i] >= seq[found] && parent[i] != 0 && !listed[parent[i]] ->
             ended = 1; break
          :: else -> i = parent[i]
          od;
          if
          :: state == NOTHING && traced[head] && landed == found -> state = PRESENT
          :: state == NOTHING && !(traced[head] && landed == found) && ended -> state = UNSURE
          :: state == NOTHING && !(traced[head] && landed == found) && !ended -> state = REMOVED
          :: else
          fi
#endif
          ;
          assert(found == landed);
          /* A look is never wrong, and is unsure only when history was removed. */
          assert(state != PRESENT || (head != 0 && holds[head]));
          assert(state != REMOVED || head == 0 || !holds[head]);
          assert(state != UNSURE || expired)
       :: else
       fi
    fi;
    i = 0; ended = 0;
    printf("%d looks: head %d, next sequence %d, state %d, found %d\n", _pid, head, v_next, state, found)
  }
}

/* ---- Append a record of one's own claim (run_log.py append): create-if-absent decides. ----
 * `slot` is the snapshot that an intent, refusal or receipt is about. Used inside `atomic`.
 */
inline append(what, slot) {
#ifdef NO_FENCE
    known = loglen;                     /* Appends after the log's last record. */
#endif
#ifdef NO_ABORT_FENCE
    if
    :: abort_at == loglen -> known = loglen
    :: else
    fi;
#endif
    if
    :: FENCED ->                        /* It may have read the later claim already. */
       if
       :: KNOWS_ABORT -> goto aborted
       :: !KNOWS_ABORT -> goto stop
       fi
    :: !FENCED && loglen > known ->
       /* Only a claim or an abort may be where a driver wants to append. */
       assert(kind[known + 1] == CLAIM || kind[known + 1] == ABORT);
       known++;
       if
       :: KNOWS_ABORT -> goto aborted
       :: !KNOWS_ABORT -> goto stop
       fi
    :: !FENCED && loglen == known && loglen < LOG - 1 ->
       assert(claim_at == own);         /* A fenced driver does not append. */
       assert(abort_at == 0);           /* After an abort: only a late receipt. */
       write(what, slot)
    fi
}
inline write(what, slot) {
    d_step {
    printf("%d appends kind %d, snapshot %d\n", _pid, what, slot);
#ifdef NO_REFUSED
    if
    :: what == REFUSED                  /* Then a ghost: it would have been written here. */
    :: else -> loglen++; known = loglen; kind[loglen] = what
    fi;
#else
    loglen++; known = loglen; kind[loglen] = what;
#endif
    if
    :: what == INTENT -> intent_at[slot] = loglen
    :: what == REFUSED ->
       assert(landed != slot);          /* It says: not in the table. Catalog checks "and never". */
       refused_at[slot] = loglen
    :: what == RECEIPT ->
       /* A receipt names the snapshot that landed, and all receipts the same. */
       assert(slot == landed);
       receipt_slot = slot;
       if
       :: receipt_at == 0 -> receipt_at = loglen
       :: else
       fi
    fi
    }
}

/* A run that was aborted has landed after all (run_log.py append_late_receipt): the first process
 * that finds it records that. Used inside `atomic`.
 */
inline late_receipt(slot) {
    assert(intent_at[slot] <= known);
    if
    :: KNOWS_RECEIPT
    :: !KNOWS_RECEIPT && loglen > known ->
       known++;
       assert(kind[known] == RECEIPT)   /* Nothing else may follow an abort. */
    :: !KNOWS_RECEIPT && loglen == known && loglen < LOG - 1 -> write(RECEIPT, slot)
    fi
}

/* A new post: its snapshot builds on what the last look saw. A driver that is paused before it
 * sends cannot be distinguished from a late request, so writing the intent and sending is one step;
 * the step that counts is Catalog's. Used inside `atomic`.
 */
#define FREE(slot) (!sent[slot] && !listed[slot] && seq[slot] == 0)
inline new_slot() {
    d_step {
      s = 1;
      do
      :: s < SLOTS - 1 && !FREE(s) -> s++
      :: else -> break
      od
    };
    FREE(s)                             /* Out of bounds: this process stops. */
}
/* A post whose number is taken can never land: forget it, to merge equal states. */
inline bury() {
#ifndef NO_SEQ_CONDITION
#ifndef HOLE_REWIND
    i = 1;
    do
    :: i < SLOTS ->
       if
       :: sent[i] && seq[i] <= last_seq && (parent[i] != 0 || files[i] == 0) ->
          sent[i] = 0; parent[i] = 0;
          if
          :: files[i] == 0 -> seq[i] = 0
          :: else
          fi
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
#else
    skip
#endif
#else
    skip
#endif
}
inline post(set) {
    d_step {
    parent[s] = v_head; seq[s] = v_next; files[s] = set; sent[s] = 1;
    printf("%d posts %d (files %d) on %d, sequence %d\n", _pid, s, set, v_head, v_next);
    v_head = 0; v_next = 0
    }
}

/* ---- resolve.py: has a post in doubt landed, or can one still land? ----
 * Result: `found`; or else `state`: NOTHING none has and none can, RAISES doubt, OUT doubt, since
 * the table is not provably the run's.
 */
inline highest_doubted() {
  skip; d_step {
    i = 1; highest = 0;
    do
    :: i < SLOTS ->
       if
       :: DOUBTED(i) && seq[i] > highest -> highest = seq[i]
       :: else
       fi;
       i++
    :: else -> break
    od;
#ifdef NO_RESOLVE
    highest = 0;
#endif
    i = 0
  }
}
inline doubt_remains() {
  d_step {
    /* No run is stuck: whatever is in doubt has a post without an answer. */
    i = 1;
    do
    :: i < SLOTS && !(intent_at[i] != 0 && intent_at[i] <= known && !ANSWERED(i)) -> i++
    :: else -> break
    od;
    assert(i < SLOTS);
    i = 0; highest = 0
  }
}
inline resolve() {
  do
  :: highest == 0 -> break
  :: atomic {
       highest != 0 ->
       look();
       if
       :: state == RAISES && ours -> doubt_remains()
#ifdef NO_FAIL_CLOSED
       :: state == RAISES && !ours -> highest = 0; state = NOTHING   /* Posts assert the UUID. */
#else
       :: state == RAISES && !ours -> doubt_remains(); state = OUT
#endif
       :: state != RAISES && found != 0 -> highest = 0; state = NOTHING
       :: state == NOTHING && found == 0 && v_next > highest -> highest = 0
       :: state == NOTHING && found == 0 && v_next <= highest ->
#ifdef NO_EMPTY_POST
          highest = 0
#else
          if
          :: looks == LOOKS -> doubt_remains(); state = RAISES
          :: looks < LOOKS
          fi
#endif
       fi;
       if
       :: highest == 0 -> v_head = 0; v_next = 0; break
       :: highest != 0
       fi
     };
     /* Its answer, if any, does not matter: the next look shows the outcome. */
     atomic { looks++; new_slot(); post(0); s = 0 }
  od
}

/* ---- When the catalog lets a post land. ---- */
#ifdef NO_UUID
#define SAME_TABLE 1
#else
#define SAME_TABLE ours
#endif
#ifdef NO_REF_CONDITION
#define SAME_HEAD(s) 1
#else
#define SAME_HEAD(s) (head == parent[s])
#endif
#ifdef NO_SEQ_CONDITION
#define NEW_SEQ(s) 1
#else
/* Catalogs do not compare the sequence number of a snapshot without a parent, and use it as the
 * table's last. For empty snapshots the model leaves that out: see HOLE_REWIND in README.md.
 */
#ifdef HOLE_REWIND
#define NEW_SEQ(s) (parent[s] == 0 || seq[s] > last_seq)
#else
#define NEW_SEQ(s) (parent[s] == 0 && files[s] != 0 || seq[s] > last_seq)
#endif
#endif
#define CAN_LAND(s) (sent[s] && SAME_TABLE && SAME_HEAD(s) && NEW_SEQ(s))

/* A conflict is recorded once a look shows no mark, and that the table has moved past the post. */
#ifdef NO_REFUSED_LOOK
#define CONFLICT goto unsent
#else
#define CONFLICT goto again
#endif
#ifdef NO_REFUSED_SETTLED
#define PAST(slot) 1
#else
#define PAST(slot) (v_next > seq[slot])
#endif
#define TOLD_ABORTED printf("%d says aborted\n", _pid); assert(landed == 0); given_up = 1
#ifdef NO_KEEP_DOUBT
#define KEPT_IN_DOUBT(slot) 0
#else
#define KEPT_IN_DOUBT(slot) (found == 0 && state != NOTHING && DOUBTED(slot))
#endif

/* ---- One start of the run: drive.py and commit.py. ---- */
proctype Start(byte set) {
  byte known, own, tries, s, refused, v_head, v_next, found, state, highest;

  /* Ledger.claim. A number lost to a rival is followed by a refresh, so the claim comes after the
   * last record; a receipt that came after the first refresh is not looked for.
   */
  atomic {
    set == 1 || claim_at != 0 || abort_at != 0;             /* By symmetry, one comes first. */
    known = loglen;
    if
    :: KNOWS_ABORT && !KNOWS_RECEIPT -> goto aborted
    :: KNOWS_RECEIPT
    :: !KNOWS_ABORT && loglen < LOG - 1 ->
       loglen++; known = loglen; own = loglen; claim_at = loglen; kind[loglen] = CLAIM;
       printf("%d claims\n", _pid)
    fi
  };

again:
  if                                            /* The answer, if any; otherwise a look. */
  :: atomic { s != 0 && landed == s -> found = s; s = 0; goto landed_already }
  /* "Conflict". A proxy may have sent it twice: one copy was refused, the other has landed, or
   * still may. A post that never lands is one that Catalog never delivers.
   */
  :: atomic { s != 0 -> refused = s; s = 0; CONFLICT }
  :: atomic {                                   /* Before any work, and before each post. */
    s = 0;
    look();
#ifdef NO_LOOK
    if
    :: state != RAISES && tries < TRIES -> found = 0; state = NOTHING
    :: else
    fi;
#endif
    if
    :: state == RAISES || state == REMOVED -> goto stop      /* An error that says why. */
    :: found != 0 && state != RAISES && state != REMOVED ->
       v_head = 0; v_next = 0; state = NOTHING; refused = 0;
       assert(landed != 0);                     /* "Committed" is reported only if it is true. */
       if
       :: KNOWS_RECEIPT -> goto stop
       :: !KNOWS_RECEIPT -> goto landed_already
       fi
    :: found == 0 && state == NOTHING && KNOWS_RECEIPT ->
       assert(landed == receipt_slot);
       goto stop                                /* The receipt is trusted: "unknown". */
    :: found == 0 && state == NOTHING && !KNOWS_RECEIPT ->
       if
       :: refused == 0 && tries == TRIES -> goto stop        /* Conflict or unknown: an error. */
       :: refused == 0 && tries < TRIES -> tries++; goto build
       :: refused != 0
       fi
    fi
  }
  fi;
  atomic {
    if
    :: PAST(refused) -> append(REFUSED, refused)
    :: !PAST(refused)                           /* It stays in doubt. */
    fi;
    refused = 0;
    if
    :: tries == TRIES -> goto stop
    :: tries < TRIES -> tries++
    fi
  };

build:
#ifndef NO_FIRST_EMPTY
  if
  :: v_head == 0 ->
     /* A data snapshot must have a parent: its sequence number is checked only then. */
     atomic { new_slot(); post(0); s = 0; goto again }
  :: v_head != 0
  fi;
#endif
  atomic {                                      /* sink.check */
    if
    :: deleted[set] -> goto stop                /* StagedFileMissingError. */
    :: else
    fi
  };
  atomic {
    new_slot();
#ifdef NO_FRESH_INTENT
    if
    :: tries == 1 -> append(INTENT, s)          /* Later posts use the first intent. */
    :: else
    fi;
#else
    append(INTENT, s);
#endif
    if
    :: post(set); goto again
#ifdef UNSENT
    :: seq[s] = v_next; files[s] = set; refused = s; s = 0; v_head = 0; v_next = 0;
       printf("%d does not send %d\n", _pid, refused)
#endif
    fi
  };
unsent:                                         /* Recorded at once: it cannot land. */
  atomic { append(REFUSED, refused); refused = 0; goto again };

landed_already:
  /* The receipt copies the intent that the mark names. An intent that this driver has not read is
   * another driver's: a refresh shows that, and the append is fenced.
   */
#ifdef NO_MARK_RECEIPT
  skip; d_step {                                /* The last intent in the log, instead. */
    i = 1;
    do
    :: i < SLOTS ->
       if
       :: intent_at[i] > intent_at[found] && intent_at[i] <= known -> found = i
       :: else
       fi;
       i++
    :: else -> break
    od
  };
#endif
  atomic {
    if
    :: intent_at[found] > known -> known = loglen
    :: else
    fi;
    append(RECEIPT, found)
  };
  goto stop;

aborted:
  /* resolve.py refuse_doubt: a user who gets "aborted" starts over under another id. */
  atomic {
    s = 0; refused = 0; found = 0; v_head = 0; v_next = 0; state = NOTHING;
#ifndef NO_TOLD_ABORTED
    if
    :: KNOWS_RECEIPT -> goto stop               /* RunCommittedError. */
    :: !KNOWS_RECEIPT -> highest_doubted()
    fi
#endif
  };
  resolve();
  atomic {
    if
    :: found != 0 -> late_receipt(found)        /* RunCommittedError. */
    :: found == 0 && state == NOTHING -> TOLD_ABORTED
    :: found == 0 && state != NOTHING           /* An error; "aborted" only if the user says so. */
    fi
  };
stop:
  atomic { skip; d_step {
    known = 0; own = 0; tries = 0; s = 0; refused = 0; v_head = 0; v_next = 0; found = 0;
    state = 0; highest = 0
  } }
}

/* ---- abort.py: the record fences like a claim; after it no post may land. ---- */
proctype Abort() {
  byte known, s, v_head, v_next, found, state, highest;

  atomic {
    receipt_at == 0;                            /* Otherwise RunCommittedError. */
    known = loglen; highest_doubted()
  };
  if
  :: highest == 0
  :: atomic {                                   /* A look first; it posts nothing. */
       highest != 0 -> highest = 0;
       look();
       if
       :: found != 0 -> goto stop               /* RunCommittedError. */
#ifndef NO_FAIL_CLOSED
       :: found == 0 && state == RAISES && !ours ->
          doubt_remains();
          if
          :: goto stop                          /* TableOutOfSightError: not recorded. */
          :: abort_word = 1                     /* Unless the user says that it is gone. */
          fi
       :: found == 0 && !(state == RAISES && !ours)
#else
       :: found == 0
#endif
       fi;
       v_head = 0; v_next = 0; state = NOTHING
     }
  fi;
  atomic {                                      /* Like a claim: after the last record. */
    loglen < LOG - 1;
    loglen++; known = loglen; abort_at = loglen; kind[loglen] = ABORT;
    printf("%d appends the abort, word %d\n", _pid, abort_word);
    if
    :: receipt_at != 0 -> goto stop             /* RunCommittedError: the log says so. */
    :: else
    fi;
    highest_doubted()
  };
  resolve();
  atomic {
    if
    :: found != 0 -> late_receipt(found)        /* RunCommittedError: it landed meanwhile. */
    :: found == 0 && state == NOTHING -> TOLD_ABORTED
    /* TableOutOfSightError, or a warning: which posts are in doubt, and why. */
    :: found == 0 && state != NOTHING
    fi
  };
stop:
  atomic { skip; d_step {
    known = 0; s = 0; v_head = 0; v_next = 0; found = 0; state = 0; highest = 0
  } }
}

/* ---- sweep.py: after a receipt or an abort, delete what no snapshot refers to, or may. ---- */
proctype Sweep() {
  byte known, s, v_head, v_next, found, state, highest;

  atomic {
#ifndef NO_SWEEP_WAITS
    receipt_at != 0 || abort_at != 0;           /* Otherwise RunUnfinishedError. */
#endif
    known = loglen;
    if
    :: KNOWS_RECEIPT -> found = receipt_slot
    :: !KNOWS_RECEIPT -> highest_doubted()
    fi
  };
  resolve();
  atomic {
    if
    :: found != 0 && !KNOWS_RECEIPT && abort_at != 0 -> late_receipt(found)
    :: else
    fi
  };
#ifdef NO_KEEP_LANDED
  found = 0;
#endif
  atomic {
    if
    :: ours                                     /* Otherwise everything is left as it is. */
    :: !ours -> goto stop
    fi;
    d_step {
    s = 1;
    do
    :: s <= 2 ->
       i = 1;                                   /* Has the set landed, or may it? */
       do
       :: i < SLOTS && !(files[i] == s && (found == i || KEPT_IN_DOUBT(i))) -> i++
       :: else -> break
       od;
       if
       :: i == SLOTS ->
          /* No file of a landed snapshot is deleted; Catalog checks those that land later. */
          assert(landed == 0 || files[landed] != s);
          printf("sweep deletes files %d\n", s);
          deleted[s] = 1
       :: else
       fi;
       s++
    :: else -> break
    od;
    i = 0
    }
  };
stop:
  atomic { skip; d_step {
    known = 0; s = 0; v_head = 0; v_next = 0; found = 0; state = 0; highest = 0
  } }
}

/* ---- The catalog: lets posts land in any order, at any time, or never. ---- */
active proctype Catalog() {
  byte s;

  do
  :: atomic {
       if
       :: CAN_LAND(1) -> s = 1
       :: CAN_LAND(2) -> s = 2
       :: CAN_LAND(3) -> s = 3
       :: CAN_LAND(4) -> s = 4
       :: CAN_LAND(5) -> s = 5
       :: CAN_LAND(6) -> s = 6
       :: CAN_LAND(7) -> s = 7
       :: CAN_LAND(8) -> s = 8
       fi;
       d_step {
       sent[s] = 0;
       printf("%d lands on %d, sequence %d (last was %d)\n", s, head, seq[s], last_seq);
       assert(head == parent[s]);               /* No change is undone unseen. */
       holds[s] = holds[parent[s]]; traced[s] = traced[parent[s]];
       if
       :: files[s] != 0 ->
          assert(landed == 0);                  /* At most one data snapshot, ever. */
          assert(ours);                         /* Only in the run's own table. */
          assert(!given_up);                    /* After an abort without doubt nothing lands. */
          assert(refused_at[s] == 0);           /* Nor does a post recorded as refused. */
          assert(!deleted[files[s]]);           /* Its files are all there. */
          landed = s; holds[s] = 1; traced[s] = 1;
#ifndef NO_ATOMIC_MARK
          mark = s
#endif
       :: else
       fi;
       listed[s] = 1; last_seq = seq[s]; head = s; s = 0;
       bury()
       }
     }
#ifdef NO_ATOMIC_MARK
  :: landed != 0 && mark == 0 && horizon == 0 -> mark = landed
#endif
  od
}

/* ---- Other users of the table. ---- */
active proctype Others() {
  byte s, acts;
  bool replaced, rolled;
  bool renamed;

  do
  :: atomic {                                   /* Append, or rewrite the manifests. */
       acts < ACTS && ours -> acts++;
       new_slot();
       parent[s] = head; seq[s] = last_seq + 1; last_seq = seq[s];
       listed[s] = 1; holds[s] = holds[head];
       d_step { bury() };
       if
       :: traced[s] = traced[head]
       :: traced[head] -> traced[s] = 0
       fi;
       head = s;
       if                                       /* Another run drops the oldest mark: ours. */
       :: mark != 0 && horizon == 0 -> horizon = seq[mark]; mark = 0
       :: true
       fi;
       printf("others append %d; horizon %d\n", s, horizon);
       s = 0
     }
  :: atomic {                                   /* Roll the branch back, or forward. */
       acts < ACTS && ours && !rolled && head != 0 -> acts++;
       rolled = 1; s = 1;
       do
       :: s < SLOTS && listed[s] && s != head -> break
       :: s < SLOTS -> s++
       :: s == SLOTS -> s = head; break
       od;
       printf("others roll back to %d\n", s);
       head = s; s = 0
     }
  :: atomic {                                   /* Replace the table: the branch is emptied. */
       acts < ACTS && ours && !replaced && head != 0 -> acts++;
       printf("others replace the table\n");
       replaced = 1; head = 0
     }
  :: atomic {                                   /* Expire history; PyIceberg cuts the parent. */
       acts < ACTS && ours && !expired && head != 0 -> acts++;
       printf("others expire history\n");
       d_step {
       expired = 1; s = 1;
       do
       :: s < SLOTS ->
          if
          :: s != head -> listed[s] = 0
          :: else
          fi;
          s++
       :: s == SLOTS -> break
       od
       };
       if
       :: parent[head] != 0 -> parent[head] = 0
       :: true
       fi;
       s = 0
     }
#ifndef RENAMED
  :: d_step {                                   /* Drop the table, and create it again. */
       acts < ACTS && ours -> acts = ACTS;
       printf("others drop the table and make it again\n");
       ours = 0;
       head = 0; last_seq = 0; mark = 0; horizon = 0; s = 1;
       do
       :: s < SLOTS -> listed[s] = 0; sent[s] = 0; parent[s] = 0; s++
       :: s == SLOTS -> break
       od;
       s = 0
     }
#endif
  /* Renamed, and another table has its name; and renamed back. */
  :: atomic { acts < ACTS && ours && !renamed ->
       printf("others rename the table, and another gets its name\n");
       acts++; ours = 0; renamed = 1 }
  :: atomic { acts < ACTS && !ours ->
       printf("others give the table its name back\n");
       acts++; ours = 1 }
  :: acts == ACTS -> break
  od
}

init {
  atomic {
    if
    :: head = 1; seq[1] = 1; last_seq = 1; listed[1] = 1
    :: true                                     /* A table without any snapshot. */
    fi;
    run Start(1);
#ifndef ONE_START
    run Start(2);                               /* It has staged some files again. */
#endif
#ifndef STARTS_ONLY
    run Abort();
#ifndef UNSWEPT
    run Sweep();
#endif
#endif
    skip
  }
}
