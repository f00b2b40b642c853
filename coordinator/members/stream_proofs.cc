#include "coordinator/members/stream_proofs.h"

namespace poseidon {

void StreamProofBook::begin(Epoch epoch, std::uint32_t workers, std::uint32_t servers) {
  if (epoch_ == epoch && workers_ == workers && servers_ == servers) return;
  epoch_ = epoch;
  workers_ = workers;
  servers_ = servers;
  numbers_.resize(std::size_t{workers} * (workers + servers));
  for (std::uint64_t& number : numbers_) {
    do {
      number = draw_();
    } while (number == 0);  // says that there is none
  }
}

v1::StreamProofs StreamProofBook::for_worker(Epoch epoch, std::uint32_t workers,
                                             std::uint32_t servers, std::uint32_t rank) {
  begin(epoch, workers, servers);
  v1::StreamProofs proofs;
  for (std::uint32_t other = 0; other < workers; ++other) {
    proofs.add_expected(shown(other, rank));
    proofs.add_to_workers(shown(rank, other));
  }
  for (std::uint32_t i = 0; i < servers; ++i) proofs.add_to_servers(shown(rank, workers + i));
  return proofs;
}

v1::StreamProofs StreamProofBook::for_server(Epoch epoch, std::uint32_t workers,
                                             std::uint32_t servers, std::uint32_t index) {
  begin(epoch, workers, servers);
  v1::StreamProofs proofs;
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    proofs.add_expected(shown(rank, workers + index));
  }
  return proofs;
}

}  // namespace poseidon
