# What travels between a master and the rest of a fleet. Fields and methods are only ever added, at the end.
# `wire/fleet_capnp.rs` is made from this file; the test `the_generated_code_is_that_of_the_schema` says how.

@0xc2b49a7de1f85036;

using Json = Data;

struct Hello {
  protoMajor @0 :UInt16;
  protoMinor @1 :UInt16;
  version @2 :Text;
  fleetId @3 :Text;
  leader @4 :Text;
  epoch @5 :UInt64;
}

struct Problem {
  code @0 :Text;
  message @1 :Text;
  subject @2 :Text;
}

struct Desired {
  group @0 :Text;
  commit @1 :Text;
  generation @2 :UInt64;
  intentHash @3 :Text;
  specsHash @4 :Text;
  specs @5 :List(Json);
  policy @6 :Json;
  publisher @7 :Text;
  with @8 :List(Desired);  # Since minor version 5: groups of the same commit that VMs come from or go to. All or none.
}

struct Verdict {
  result @0 :Result;
  problems @1 :List(Problem);
  active @2 :UInt64;
  highest @3 :UInt64;
  with @4 :List(Verdict);  # Since minor version 5: of those that were published with it, in their order.

  enum Result {
    accepted @0;
    duplicate @1;
    stale @2;
    conflict @3;
    invalid @4;
    held @5;
    suspended @6;
    notLeader @7;
  }
}

struct Assigned {
  instance @0 :Text;
  generation @1 :UInt64;
  vmHash @2 :Text;
  spec @3 :UInt32;       # Index into the specs of the assignment.
  leaving @4 :Bool;
  frozen @5 :Bool;
}

struct Assignment {
  generation @0 :UInt64;
  revision @1 :UInt64;
  epoch @2 :UInt64;
  specs @3 :List(Json);
  instances @4 :List(Assigned);
}

struct Observed {
  workerId @0 :Text;
  bootId @1 :Text;
  session @2 :UInt64;
  seq @3 :UInt64;
  seenGeneration @4 :UInt64;
  seenRevision @5 :UInt64;
  full @6 :Bool;
  instances @7 :List(Instance);
  facts @8 :Json;
  process @9 :Text;      # Since minor version 2: of the agent's process, like no other.

  struct Instance {
    key @0 :Text;
    vmHash @1 :Text;
    state @2 :Text;
    ready @3 :Bool;
    uptimeMs @4 :UInt64;
    attempts @5 :UInt32;
    code @6 :Text;
    detail @7 :Text;
    cpuMilli @8 :UInt32;
    memMiB @9 :UInt32;
    diskMiB @10 :UInt64;   # Since minor version 3, as is what follows.
    group @11 :Text;
  }
}

# All that somebody without a certificate is given.
interface Join {
  hello @0 (me :Hello) -> (you :Hello);
  join @1 (token :Text, csr :Data) -> (cert :Data, ca :Data);
}

interface Master {
  hello @0 (me :Hello) -> (you :Hello);
  reserveGeneration @1 (commit :Text, publisher :Text) -> (generation :UInt64);
  publishDesiredState @2 (desired :Desired) -> (verdict :Verdict);
  getAssignment @3 (workerId :Text, lastSeenGeneration :UInt64, lastSeenRevision :UInt64, waitMs :UInt32)
      -> (unchanged :Bool, assignment :Assignment);
  # The heartbeat.
  reportObserved @4 (observed :Observed) -> (leaseMs :UInt64, intervalMs :UInt32, needFull :Bool, leader :Text);
  getStatus @5 (afterSeq :UInt64, waitMs :UInt32, filter :Json) -> (status :Json, seq :UInt64);
  explain @6 (instance :Text) -> (explanation :Json);
  getSnapshot @7 () -> (snapshot :Json);
  reportPipeline @8 (state :Json) -> ();
  setHold @9 (hold :Json) -> (id :Text);
  renew @10 (csr :Data) -> (cert :Data, ca :Data);
  # Times in seconds since 1970 and id since minor version 4; 0 and nothing: as the master says.
  mintJoin @11 (role :Text, name :Text, ttlMs :UInt64, iat :Int64, exp :Int64, jti :Text) -> (token :Text);
  # Since minor version 1: who was enrolled, and an end to it by id of token or by name.
  getEnrolments @12 () -> (enrolments :Json);
  revokeEnrolment @13 (what :Text) -> (revoked :Json);
}
