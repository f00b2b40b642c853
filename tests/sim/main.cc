// cluster_simulation: many seeds of tests/sim/cluster_sim.h, or one of them again.

#include <cstdint>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "tests/sim/cluster_sim.h"

int main(int argc, char** argv) {
  CLI::App app{
      "Simulates clusters from seeds and checks the synchronisation's invariants.\n"
      "A failing seed is printed; --seed runs it again, step for step the same."};
  std::uint64_t first_seed = 1;
  std::uint64_t seeds = 300;
  std::uint64_t seed = 0;
  app.add_option("--first-seed", first_seed, "first seed")->capture_default_str();
  app.add_option("--seeds", seeds, "how many seeds")->capture_default_str();
  app.add_option("--seed", seed, "this seed alone");
  CLI11_PARSE(app, argc, argv);
  if (seed != 0) {
    first_seed = seed;
    seeds = 1;
  }
  std::int64_t failed = 0, steps = 0, cuts = 0, duplicates = 0, reorders = 0, pauses = 0;
  for (std::uint64_t s = first_seed; s < first_seed + seeds; ++s) {
    const poseidon::sim::Outcome outcome = poseidon::sim::simulate(s);
    steps += outcome.steps;
    cuts += outcome.cuts;
    duplicates += outcome.duplicates;
    reorders += outcome.reorders;
    pauses += outcome.relay_pauses;
    if (seed != 0) std::printf("%s\n", outcome.description.c_str());
    if (outcome.ok) continue;
    ++failed;
    std::printf("seed %llu failed after %lld steps: %s\n  cluster: %s\n  again: %s --seed %llu\n",
                static_cast<unsigned long long>(s), static_cast<long long>(outcome.steps),
                outcome.failure.c_str(), outcome.description.c_str(), argv[0],
                static_cast<unsigned long long>(s));
  }
  std::printf(
      "%llu seeds, %lld failed; %lld steps, %lld cuts, %lld duplicates, %lld reorders, "
      "%lld pauses by relays\n",
      static_cast<unsigned long long>(seeds), static_cast<long long>(failed),
      static_cast<long long>(steps), static_cast<long long>(cuts),
      static_cast<long long>(duplicates), static_cast<long long>(reorders),
      static_cast<long long>(pauses));
  // A simulation without faults, in which no node has to wait, proves nothing.
  if (seeds >= 100 && (cuts == 0 || duplicates == 0 || reorders == 0 || pauses == 0)) return 1;
  return failed == 0 ? 0 : 1;
}
