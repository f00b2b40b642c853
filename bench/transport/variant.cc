#include "bench/transport/variant.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "common/grpc/grpc_transport.h"
#include "common/memory/tensor_memory.h"

namespace poseidon::bench {
namespace {

void leave_process_as_it_is() {}

void as_in_production() {
  tune_process();
  if (const absl::Status status = share_tensor_memory(); !status.ok()) give_up(status);
}

constexpr std::array kVariants = {
    Variant{"raw", Answer::kSum, leave_process_as_it_is, make_raw_server, make_raw_worker},
    Variant{"sockets", Answer::kParameters, tune_process, make_poseidon_server,
            make_poseidon_worker},
    Variant{"tls", Answer::kParameters, tune_process, make_poseidon_server, make_poseidon_worker,
            /*tls=*/true},
    Variant{"shared-memory", Answer::kParameters, as_in_production, make_poseidon_server,
            make_poseidon_worker},
    Variant{"naive", Answer::kSum, leave_process_as_it_is, make_naive_server, make_naive_worker},
};

}  // namespace

std::span<const Variant> all_variants() { return kVariants; }

const Variant* find_variant(std::string_view name) {
  const auto* found = std::ranges::find(kVariants, name, &Variant::name);
  return found == kVariants.end() ? nullptr : found;
}

void give_up(const absl::Status& why) {
  std::fprintf(stderr, "%s\n", std::string(why.message()).c_str());
  std::fflush(stderr);
  ::_exit(1);
}

}  // namespace poseidon::bench
