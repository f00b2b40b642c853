// Seeds of the targets whose inputs are steps: actions on streams, frames and a cluster, one or a
// few bytes each.

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/seeds.h"
#include "tests/fuzz/tls_frames_steps.h"

namespace poseidon::fuzz {

/// Steps of streams_fuzz.cc: two iterations of three workers, and what goes wrong with them.
void add_streams(Seeds& seeds) {
  const auto opens = [](int peer, bool paced) { return bytes_of({peer * 16 + (paced ? 0 : 1)}); };
  const auto says = [](int peer, int how, int where, int what) {
    return bytes_of({peer * 16 + 9, how, where, what});
  };
  const auto acts = [](int how) { return bytes_of({4, how}); };
  std::string all_open;
  for (int peer = 0; peer < 3; ++peer) all_open += opens(peer, peer != 1);

  // A shard of eight chunks.
  const auto of_chunks = [&says](int rank, int kind, int iteration, int number) {
    int how = number * 32;
    while (how % 7 != kind - 1) ++how;
    std::string text;
    for (int chunk = 0; chunk < 8; ++chunk) {
      text += says(rank, how, rank + chunk * 4, iteration * 16);
    }
    return text;
  };
  const std::string initialised = of_chunks(0, 2, 0, 0);
  const auto pushed = [&of_chunks](int iteration) {
    return of_chunks(2, 1, iteration, 0) + of_chunks(0, 1, iteration, 1) +
           of_chunks(1, 1, iteration, 2);
  };
  const auto shard = [&](int job) { return bytes_of({0, job}) + all_open + initialised; };
  seeds.add("streams", "shard", shard(0) + pushed(0) + pushed(1) + of_chunks(1, 3, 2, 0));
  seeds.add("streams", "shard-bf16-adam",
            shard(1 + 4) + acts(18) + pushed(0) + pushed(1) + acts(2) + acts(14));
  seeds.add("streams", "shard-clip",
            shard(8) + pushed(0) + of_chunks(0, 6, 0, 3) + pushed(1) + of_chunks(0, 6, 1, 3));
  seeds.add("streams", "shard-not-finite", shard(2) + of_chunks(0, 1, 0, 5) + pushed(0));
  seeds.add("streams", "shard-again",
            shard(0) + pushed(0) + bytes_of({16 + 3}) + opens(1, true) + pushed(0) + acts(2) +
                acts(0) + all_open + initialised + pushed(0));

  // A store: pieces are written, read, and held.
  const auto of_pieces = [&says](int peer, int operation, int slot) {
    std::string text;
    for (int piece = 0; piece < 4; ++piece) {
      text += says(peer, operation - 1 + 8 * 2, piece * 4 + slot * 64, 0);
    }
    return text;
  };
  seeds.add("streams", "store",
            bytes_of({1, 0}) + opens(0, true) + opens(1, false) + of_pieces(0, 2, 1) +
                of_pieces(0, 1, 0) + of_pieces(1, 1, 1) + of_pieces(1, 6, 0) + of_pieces(0, 7, 0) +
                acts(2) + acts(1) + acts(0) + of_pieces(0, 2, 0));

  // Factors: the first worker's stream, and ours to the last.
  // Four iterations, and digests before every second one and after the last.
  const auto of_rank = [&says](int rank, int iteration, int first) {
    const int peer = rank == 0 ? 0 : 3;
    const int what = iteration * 16 + 1;
    std::string text;
    if ((first + iteration) % 2 == 0 || iteration == 4) text += says(peer, 3, rank, what);
    for (int piece = 0; piece < 2 && iteration < 4; ++piece) {
      text += says(peer, 1, rank + piece * 4, what) + says(peer, 2, rank + piece * 4, what);
    }
    return text;
  };
  const auto set = [&](int iteration, int first = 0) {
    return acts(1) + of_rank(0, iteration, first) + of_rank(2, iteration, first);
  };
  std::string parameters;
  for (int piece = 0; piece < 4; ++piece) parameters += says(0, 4, piece * 4, 0);
  const std::string greeted = opens(0, true) + says(0, 0, 0, 0) + says(3, 0, 2, 0);
  seeds.add("streams", "factors",
            bytes_of({2, 0}) + greeted + parameters + set(0) + set(1) + set(2) + set(3) + set(4));
  seeds.add("streams", "factors-of-a-checkpoint",
            bytes_of({2, 1}) + greeted + set(0, 3) + set(1, 3));
  seeds.add("streams", "factors-plain",
            bytes_of({2 + 3, 0}) + opens(0, false) + says(0, 0, 0, 0) + says(3, 0, 2, 0) +
                parameters + set(0));
  seeds.add("streams", "factors-cut",
            bytes_of({2, 0}) + greeted + parameters + set(0) + bytes_of({3, 8, 4}) +
                opens(0, true) + says(0, 0, 0, 0) + set(1) + bytes_of({8, 250}));

  // A measurement, answered (what is taken of the answerer's data comes at the end), and asked for.
  const auto hello = [](int peer) { return bytes_of({peer * 16 + 9, 5 * 12, 9, 0}); };
  const auto data = [](int peer, int taken) { return bytes_of({peer * 16 + 9, 2, 150, taken}); };
  seeds.add("streams", "probe-answers",
            bytes_of({96, 0}) + opens(0, true) + hello(0) + bytes_of({9, 1, 0, 0}) + data(0, 0) +
                data(0, 0) + data(0, 0) + bytes_of({8, 1}) + bytes_of({9, 3, 0, 8}) +
                bytes_of({9, 3, 0, 16}) + bytes_of({8, 250}));
  seeds.add("streams", "probe-asks",
            bytes_of({96, 0}) + acts(255) + hello(3) + bytes_of({3 * 16 + 9, 1, 0, 0}) +
                bytes_of({3 * 16 + 9, 1, 0, 0}) + bytes_of({3 * 16 + 9, 1, 0, 0}) +
                bytes_of({3 * 16 + 9, 1, 0, 0}) + bytes_of({3 * 16 + 9, 1, 0, 0}) +
                bytes_of({3 * 16 + 9, 3, 0, 16}) + bytes_of({3 * 16 + 9, 4 + 5 * 10, 9, 16}) +
                data(3, 16) + data(3, 16) + bytes_of({8, 1}) + data(3, 16) + acts(7) + acts(4));

  // As one of ours, but by hand: an offer, then messages with headers.
  const std::string by_hand = opens(0, false) + bytes_of({6, 0});
  seeds.add("streams", "shared-memory",
            bytes_of({0, 0}) + by_hand + bytes_of({7, 32, 1, 0, 0, 0, 0}) +
                bytes_of({7, 32 + 2, 1, 8, 0, 0, 0}) + bytes_of({7, 32, 1, 12, 0, 200, 0}) +
                opens(1, false) + bytes_of({16 + 6, 0}) + bytes_of({16 + 7, 4 + 8, 0, 0, 1, 4, 0}));
}

/// Steps of tls_frames_fuzz.cc: streams that are used and ended, some that somebody changes.
void add_tls_frames(Seeds& seeds) {
  const auto step = [](FrameStep what) { return bytes_of({static_cast<int>(what)}); };
  const auto says = [&step](FrameStep what, const std::string& text) {
    return step(what) + bytes_of({static_cast<int>(text.size())}) + text;
  };
  const std::string opens =
      step(FrameStep::kAnew) + says(FrameStep::kOpens, "/poseidon.v1.ParameterServer/Exchange");
  const std::string talk = says(FrameStep::kSends, "hello") +
                           says(FrameStep::kSends, std::string(250, 'x')) +
                           step(FrameStep::kIsAlive) + says(FrameStep::kSends, "");
  const std::string much = step(FrameStep::kSendsMuch) + bytes_of({110});
  seeds.add("tls_frames", "talk", opens + talk + much + says(FrameStep::kEnds, "no such chunk"));
  std::string changed = opens + talk;
  for (int how = 0; how < 5; ++how) {
    const std::string change = step(FrameStep::kChange) + bytes_of({how, 3});
    absl::StrAppend(&changed, opens, talk, change, talk);
  }
  seeds.add("tls_frames", "changed",
            changed + opens + step(FrameStep::kChange) + bytes_of({0, 3}) + much);
  seeds.add("tls_frames", "raw",
            opens + talk + step(FrameStep::kPieces) + bytes_of({2}) + talk +
                step(FrameStep::kDrops) + bytes_of({20}) + says(FrameStep::kEnds, "dropped") +
                opens + says(FrameStep::kRaw, std::string("\1\0\0\0\5\0\0\0raw", 11)) +
                says(FrameStep::kRaw, std::string(200, 'r')));
}

/// Steps of cluster_fuzz.cc: what becomes of jobs when all goes well, and when nodes are lost.
void add_cluster(Seeds& seeds) {
  const auto step = [](std::initializer_list<int> bytes) { return bytes_of(bytes); };
  const std::string joins = step({0, 0, 0}) + step({0, 1, 0}) + step({0, 3, 0}) + step({0, 4, 0});
  const std::string ready = step({7}) + step({7});
  // One byte says what a job is like: 1 long, 2 calibrated, 4 by factors, 8 with checkpoints, 16
  // replicated, 32 elastic.
  const auto submit = [&step](int what) { return step({2, what, 2 + 4 * 2}); };
  // Four seconds in which all are heard of.
  std::string quiet;
  for (int i = 0; i < 4; ++i) quiet += step({1, 50}) + step({7});
  std::string two_iterations, finished;
  for (const int worker : {0, 1}) {
    two_iterations += step({8, worker, 1}) + step({8, worker, 1});
    finished += step({8, worker, 5});
  }
  const auto checkpoint = [&step](int iteration) {
    const int how = (iteration - 2) * 16;  // and what is 8 when divided by 14
    int report = how;
    while (report % 14 != 8) ++report;
    return step({8, 3, report}) + step({8, 4, report});
  };
  const std::string begun = joins + submit(8) + ready + two_iterations + checkpoint(2);
  const std::string to_the_end = two_iterations + checkpoint(4) + two_iterations + checkpoint(6) +
                                 finished + step({5, 5}) + step({1, 10});
  const std::string halted =
      step({8, 0, 9}) + step({8, 1, 9}) + step({8, 3, 9}) + step({8, 4, 9}) + step({1, 10});
  seeds.add("cluster", "done",
            joins + submit(4) + ready + two_iterations + two_iterations + two_iterations +
                finished + step({5, 5}) + step({1, 10}) + step({5, 4}));
  seeds.add("cluster", "checkpoint",
            begun + step({5, 0}) + step({5, 1}) + to_the_end + step({5, 4}));
  seeds.add("cluster", "restored", begun + to_the_end + step({5, 140}) + ready + two_iterations);
  const std::string loses = joins + submit(8 + 1) + ready + two_iterations + checkpoint(2);
  seeds.add("cluster", "worker-lost",
            loses + step({3, 1}) + quiet + halted + step({0, 1, 16}) + ready + two_iterations);
  seeds.add("cluster", "worker-back",
            loses + step({3, 1}) + step({1, 100}) + step({0, 1, 7}) + two_iterations);
  seeds.add("cluster", "server-lost",
            joins + submit(8 + 16 + 1) + ready + two_iterations + checkpoint(2) + step({3, 3}) +
                quiet + halted + step({0, 3, 16}) + ready + two_iterations);
  seeds.add("cluster", "elastic",
            joins + submit(32 + 8 + 1) + ready + two_iterations + checkpoint(2) + step({0, 2, 0}) +
                quiet + halted + ready + two_iterations);
  std::string measured;
  for (const int node : {0, 1, 3, 4}) measured += step({8, node, 7});
  std::string calibrated = joins + submit(2 + 1);
  for (int i = 0; i < 8; ++i) calibrated += measured + step({1, 10});
  seeds.add("cluster", "calibrated", calibrated + ready + two_iterations);
  seeds.add("cluster", "killed",
            begun + step({6}) + joins + quiet + step({7}) + step({1, 250}) + ready +
                two_iterations + step({5, 4}));
  seeds.add("cluster", "traced",
            joins + submit(1) + ready + two_iterations + step({5, 64 + 5}) + two_iterations +
                step({8, 0, 11}) + step({8, 0, 12}) + step({1, 250}));
}

}  // namespace poseidon::fuzz
