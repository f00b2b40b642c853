// The ports of the data path, each behind the transport that the daemons have, and peers that send
// it what they like: a server's shard, a server's store, a worker's door for factors, the relay of
// a group of workers, to whose servers the peers answer too.
//
// The first byte chooses the port, the second what its job is like. Then each step begins with a
// byte that chooses what happens; most take some more. Peers speak as ours do (offer, answer, one
// header in front of each message), as a stock client does, or say bytes of the input.

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/factor_wire.h"
#include "common/memory_transport.h"
#include "common/norm_wire.h"
#include "common/paced_transport.h"
#include "common/store_wire.h"
#include "common/stream_header.h"
#include "common/wire.h"
#include "poseidon/v1/stream.pb.h"
#include "server/checkpoint_keeper.h"
#include "server/memory_chunk_store.h"
#include "server/shard_service.h"
#include "server/store_service.h"
#include "tests/fuzz/input.h"
#include "tests/support/toy_plan.h"
#include "worker/factor_exchange.h"
#include "worker/relay_service.h"

namespace poseidon::fuzz {
namespace {

constexpr int kMaxSteps = 300;
constexpr std::size_t kPeers = 3;
/// Ours is the second worker of three: it accepts the first one's stream, and connects to the last.
constexpr std::uint32_t kWorkers = 3;
constexpr std::int64_t kChunkElements = 4;
constexpr std::int64_t kPendingLimitBytes = 64;

/// Numbers that training has, and numbers that it must not have.
constexpr std::array<float, 8> kNumbers = {0.5F,
                                           -1.0F,
                                           0.0F,
                                           1e30F,
                                           1e-40F,
                                           std::numeric_limits<float>::infinity(),
                                           std::numeric_limits<float>::quiet_NaN(),
                                           std::numeric_limits<float>::max()};

/// Of this process, which plays both ends.
SharedArena* arena() {
  static const std::unique_ptr<SharedArena> kArena = *SharedArena::create(1 << 16);
  return kArena.get();
}

/// Where payloads are that stay in their sender's memory.
std::span<std::byte> shared_payloads() {
  constexpr std::size_t kBytes = 4096;
  static std::byte* const kMemory = static_cast<std::byte*>(arena()->allocate(kBytes));
  return {kMemory, kBytes};
}

struct Words {
  MessagePrefix prefix;
  std::string payload;
};

OutgoingMessage message_of(MessagePrefix prefix, std::string_view payload = "") {
  prefix.append(payload);
  return {.prefix = std::move(prefix), .payload = {}, .payload_owner = nullptr};
}

std::string encoded(ElementType type, std::size_t elements, float value) {
  const std::vector<float> values(elements, value);
  std::string bytes(elements * element_bytes(type), '\0');
  // NaN and what is too large become what they become: a peer that means harm does not ask.
  if (!bytes.empty()) encode_payload(type, values, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// What is attacked.
class Port {
 public:
  virtual ~Port() = default;
  /// A message that may well be right.
  virtual Words believable(Input& input) = 0;
  /// Something that the job does of itself.
  virtual void act(std::uint8_t how) = 0;
  virtual void check() const {}
};

/// A message about a chunk of the plan that may well be right.
Words believable_chunk(Input& input, const Plan& plan) {
  const std::uint8_t how = input.byte();
  const std::uint8_t where = input.byte();
  const std::uint8_t what = input.byte();
  ChunkHeader header;
  header.kind = static_cast<ChunkKind>(1 + how % 7);
  header.epoch = Epoch(plan.epoch.value() + (what == 255 ? 1 : 0));
  header.iteration = what / 16 % 8;
  header.rank = WorkerRank(
      where % (kWorkers + 1) == kWorkers && what % 16 != 15 ? 0 : where % (kWorkers + 1));
  const std::size_t chunk = where / 4 % plan.chunks.size();
  header.chunk = ChunkId(static_cast<std::uint32_t>(what == 254 ? plan.chunks.size() : chunk));
  header.offset = plan.chunks[chunk].offset + (what == 253 ? 1 : 0);
  const auto elements =
      static_cast<std::size_t>(plan.chunks[chunk].elements + (what == 252 ? 1 : 0));
  const float value = kNumbers[how / 32];
  const bool of_norms = header.kind == ChunkKind::kNorms || header.kind == ChunkKind::kTotals;
  std::string payload;
  if (header.kind == ChunkKind::kPushGradient || header.kind == ChunkKind::kParameters) {
    header.element_type = plan.wire_type;
  } else if (header.kind == ChunkKind::kInitialise) {
    header.element_type = ElementType::kFloat32;
  }
  if (what == 251) header.element_type = ElementType::kBfloat16;
  if (what == 250) header.element_type = ElementType::kFloat32;
  if (header.element_type != ElementType::kNone && header.kind != ChunkKind::kPull) {
    payload = encoded(header.element_type, elements, value);
  } else if (of_norms) {
    const std::vector<TensorSquares> tensor = {{.gradient = value, .parameters = value}};
    payload = header.kind == ChunkKind::kNorms
                  ? encode_norms(tensor)
                  : encode_totals({.all_gradients = value, .tensors = tensor});
  }
  return {encode_prefix(header, payload.size()), payload};
}

class ShardPort final : public Port {
 public:
  ShardPort(Transport* transport, std::uint8_t job)
      : service_(transport, &refusals_, {}, kPendingLimitBytes) {
    POSEIDON_CHECK(transport->listen("victim", &service_).ok(), "a free address");
    service_.set_frozen_sink([this](Epoch, FrozenChunk chunk) {
      frozen_.push_back(std::move(chunk));
      if (frozen_.size() > 4) frozen_.pop_front();
    });
    plan_ = testing_support::toy_plan(kWorkers, 1, {10, 12, 7}, kChunkElements);
    plan_.wire_type =
        std::array{ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}[job % 3];
    if (job / 4 % 2 == 1) optimizer_.type = OptimizerType::kAdam;
    if (job / 8 % 2 == 1) optimizer_.clip_norm = 1.0;
    plan_.norm_scope = norm_scope(optimizer_);
    assign();
  }

  Words believable(Input& input) override { return believable_chunk(input, plan_); }

  void act(std::uint8_t how) override {
    switch (how % 5) {
      case 0:
        plan_.epoch = Epoch(plan_.epoch.value() + 1);
        assign();
        break;
      case 1:
        service_.drop(plan_.epoch);
        break;
      case 2:
        service_.halt(plan_.epoch, [](const Shard*) {});
        break;
      case 3:
        service_.with_shard(plan_.epoch, [how](Shard* shard) {
          if (shard != nullptr) (void)shard->freeze_at(how / 8);
        });
        break;
      default:
        service_.with_shard(plan_.epoch, [how](Shard* shard) {
          if (shard != nullptr) (void)shard->freeze_held(how / 8);
        });
        break;
    }
  }

  void check() const override {
    const Shard* shard = service_.shard();
    if (shard == nullptr) return;
    // One message of each worker may be on its way when its reading is stopped.
    POSEIDON_CHECK(shard->pending_bytes() <=
                       kPendingLimitBytes +
                           static_cast<std::int64_t>(kWorkers * kChunkElements * sizeof(float)),
                   "early gradients are bounded");
    const HeldRange held = shard->held();
    for (const ChunkId chunk : shard->owned_chunks()) {
      const Iteration version = shard->version(chunk);
      POSEIDON_CHECK(version >= -1 && version <= held.oldest + 1, "all within one step");
    }
  }

 private:
  void assign() {
    service_.assign(plan_, ServerIndex(0), optimizer_,
                    std::make_shared<TrafficProbe>(plan_.layers.size()), [] {});
  }

  RefusalCounts refusals_;
  Plan plan_;
  OptimizerSpec optimizer_;
  std::deque<FrozenChunk> frozen_;
  ShardService service_;
};

class StorePort final : public Port {
 public:
  explicit StorePort(Transport* transport)
      : disk_(transport, Milliseconds(1)),
        keeper_(std::make_unique<MemoryChunkStore>(), &disk_),
        service_(transport, &keeper_) {
    POSEIDON_CHECK(transport->listen("victim", &service_).ok(), "a free address");
    begin();
  }

  Words believable(Input& input) override {
    const std::uint8_t how = input.byte();
    const std::uint8_t where = input.byte();
    StoreHeader header;
    header.operation = static_cast<StoreOperation>(1 + how % 8);
    header.request = how / 64 == 3 ? how : ++requests_;
    header.snapshot = snapshot_id(epoch_, where % 4);
    header.piece = PieceId(where / 4 % (kPieces + 1));
    header.slot = where / 64;
    const std::size_t elements = how / 8 % 4;
    const std::string payload = encoded(ElementType::kFloat32, elements, kNumbers[how / 32]);
    return {encode_prefix(header, payload.size()), payload};
  }

  void act(std::uint8_t how) override {
    const SnapshotId snapshot = snapshot_id(epoch_, how / 8 % 4);
    switch (how % 4) {
      case 0:
        epoch_ = Epoch(epoch_.value() + 1);
        begin();
        break;
      case 1:
        keeper_.forget(snapshot);
        break;
      case 2:
        (void)keeper_.put_held_state(snapshot, PieceId(how / 32));
        break;
      default:
        keeper_.end(epoch_);
        break;
    }
  }

 private:
  static constexpr std::uint32_t kPieces = 4;
  void begin() {
    keeper_.begin(epoch_, kPieces, [](const SnapshotResult&) {});
  }

  BackgroundOnLoop disk_;
  CheckpointKeeper keeper_;
  StoreService service_;
  Epoch epoch_{5};
  std::uint64_t requests_ = 0;
};

class FactorPort final : public Port, public SyncerEvents {
 public:
  FactorPort(Transport* transport, std::uint8_t job) : door_(transport, &refusals_) {
    POSEIDON_CHECK(transport->listen("victim", &door_).ok(), "a free address");
    plan_ = testing_support::toy_plan(kWorkers, 1, {kParameters}, kChunkElements);
    testing_support::send_by_factors(plan_, LayerIndex(0), 3, 4);
    plan_.batch_size = 2;
    plan_.worker_addresses = {"first", "victim", "peer"};
    options_.first_iteration = job % 2 == 0 ? 0 : 3;
    options_.sfb = {.piece_bytes = kPieceElements * sizeof(float),
                    .first_iteration = options_.first_iteration,
                    .iterations = options_.first_iteration + 4,
                    .check_every = 2};
    initialised_ = options_.first_iteration > 0;
    own_ = complete_ = options_.first_iteration - 1;
    exchange_ = std::make_unique<FactorExchange>(
        plan_, WorkerRank(1),
        std::vector<LayerMemory>{
            {.parameters = parameters_.floats(), .gradients = {}, .owner = parameters_.owner()}},
        PeerAccess{transport, &door_}, options_, this, &traffic_, &refusals_);
    exchange_->start();
  }

  Words believable(Input& input) override {
    const std::uint8_t how = input.byte();
    const std::uint8_t where = input.byte();
    const std::uint8_t what = input.byte();
    FactorHeader header;
    header.kind = static_cast<FactorKind>(1 + how % 6);
    header.epoch = Epoch(plan_.epoch.value() + (what == 255 ? 1 : 0));
    const bool greets = header.kind == FactorKind::kHello;
    header.rank = WorkerRank(where % 4);
    std::string payload;
    if (!greets) {
      header.iteration = options_.first_iteration + what / 16 % 6;
      if (what % 16 == 15) header.iteration -= 2;
      header.layer = LayerIndex(what == 254 ? 1 : 0);
    }
    const bool of_rows =
        header.kind == FactorKind::kOutputGradient || header.kind == FactorKind::kInput;
    if (of_rows) header.rows = plan_.batch_size + (what == 253 ? 1 : 0);
    const std::int64_t elements = header.kind == FactorKind::kOutputGradient ? plan_.batch_size * 3
                                  : header.kind == FactorKind::kInput        ? plan_.batch_size * 4
                                  : header.kind == FactorKind::kParameters   ? kParameters
                                                                             : 0;
    if (elements > 0) {
      header.element_type = ElementType::kFloat32;
      header.offset = where / 4 % piece_count(elements, kPieceElements) * kPieceElements;
      const std::int64_t here = std::min(kPieceElements, elements - header.offset);
      payload = encoded(ElementType::kFloat32,
                        static_cast<std::size_t>(here + (what == 252 ? 1 : 0)), kNumbers[how / 32]);
    }
    if (header.kind == FactorKind::kDigest) header.digest = what % 4;
    return {encode_prefix(header, payload.size()), payload};
  }

  /// The trainer's next set of its own, once it has everybody's last one.
  void act(std::uint8_t how) override {
    if (failed_ || !initialised_ || complete_ < own_ || own_ + 1 > options_.sfb.iterations) {
      return;
    }
    ++own_;
    if (own_ < options_.sfb.iterations) {
      const OwnFactors own = exchange_->route().own(LayerIndex(0), own_);
      std::ranges::fill(own.output_gradient, 1.0F);
      std::ranges::fill(own.input, 2.0F);
    }
    exchange_->factors_ready(LayerIndex(0), own_, how % 2);
  }

  void parameters_ready(LayerIndex /*layer*/, Iteration version) override {
    POSEIDON_CHECK(version == options_.first_iteration, "the initial ones, or a checkpoint's");
    initialised_ = true;
  }
  void factors_complete(LayerIndex layer, Iteration iteration) override {
    POSEIDON_CHECK(iteration == own_, "no set is whole without one's own part");
    complete_ = iteration;
    if (iteration >= options_.sfb.iterations) return;
    const StackedFactors all = exchange_->route().stacked(layer, iteration);
    const float sum = *std::max_element(all.inputs.begin(), all.inputs.end());
    POSEIDON_CHECK(!(sum > std::numeric_limits<float>::max()), "finite, or refused");
  }
  void sync_failed(const absl::Status& status) override {
    POSEIDON_CHECK(!failed_ && !status.ok(), "the last event, with its reason");
    failed_ = true;
  }

 private:
  static constexpr std::int64_t kParameters = 15;  ///< 3 x 4 and a bias
  static constexpr std::int64_t kPieceElements = 4;

  RefusalCounts refusals_;
  TrafficProbe traffic_{1};
  PeerDoor door_;
  FloatBuffer parameters_{kParameters};
  Plan plan_;
  SyncerOptions options_;
  bool initialised_ = false, failed_ = false;
  Iteration own_ = -1, complete_ = -1;
  std::unique_ptr<FactorExchange> exchange_;
};

class RelayPort final : public Port {
 public:
  RelayPort(Transport* transport, std::uint8_t job)
      : transport_(transport), service_(transport, &refusals_, {}) {
    POSEIDON_CHECK(transport->listen("victim", &service_).ok(), "a free address");
    plan_ = testing_support::toy_plan(kWorkers, 1, {10, 12, 7}, kChunkElements);
    plan_.server_addresses = {"peer"};
    plan_.worker_addresses = {"victim", "first", "peer"};
    plan_.leaders = {WorkerRank(0), WorkerRank(0),
                     job / 4 % 2 == 1 ? WorkerRank(2) : WorkerRank(0)};
    plan_.wire_type =
        std::array{ElementType::kFloat32, ElementType::kBfloat16, ElementType::kFloat16}[job % 3];
    options_.first_iteration = job / 8 % 2 == 0 ? 0 : 3;
    begin();
  }

  Words believable(Input& input) override { return believable_chunk(input, plan_); }

  void act(std::uint8_t how) override {
    if (how % 4 == 1) service_.end(plan_.epoch);
    if (how % 4 == 0) {
      plan_.epoch = Epoch(plan_.epoch.value() + 1);
      begin();
    }
  }

  void check() const override {
    if (service_.relay() == nullptr) return;
    POSEIDON_CHECK(service_.relay()->pending_bytes() <=
                       static_cast<std::int64_t>(kWorkers * 29 * sizeof(float)),
                   "an iteration of each worker at most");
  }

 private:
  void begin() {
    service_.begin(plan_, WorkerRank(0), transport_, options_, &traffic_,
                   [this, epoch = plan_.epoch](const absl::Status& status) {
                     POSEIDON_CHECK(!status.ok() && failed_ < epoch, "once, with its reason");
                     failed_ = epoch;
                   });
  }

  Transport* const transport_;
  RefusalCounts refusals_;
  TrafficProbe traffic_{3};
  Plan plan_;
  SyncerOptions options_;
  Epoch failed_;
  RelayService service_;
};

/// One stream of somebody's, by the plain transport or by one of ours.
class Peer final : public StreamHandler {
 public:
  void open(std::unique_ptr<Stream> stream) {
    stream_ = std::move(stream);
    waiting_.clear();
    kept_.reset();
    writing_ = closing_ = false;
  }
  void say(OutgoingMessage message) {
    if (stream_ == nullptr || closing_ || waiting_.size() >= 64) return;
    waiting_.push_back(std::move(message));
    pump();
  }
  void close() {
    if (stream_ == nullptr || closing_) return;
    closing_ = true;
    waiting_.clear();
    if (!writing_) stream_->close(absl::OkStatus());
  }
  void cut() { stream_.reset(); }
  bool is_open() const { return stream_ != nullptr; }

  ReadNext on_message(Bytes message) override {
    kept_ = std::move(message);  // until the next one
    return ReadNext::kContinue;
  }
  void on_written() override {
    writing_ = false;
    if (closing_) {
      stream_->close(absl::OkStatus());
    } else {
      pump();
    }
  }
  void on_closed(const absl::Status& /*status*/) override { stream_.reset(); }

 private:
  void pump() {
    if (writing_ || waiting_.empty()) return;
    writing_ = true;
    OutgoingMessage next = std::move(waiting_.front());
    waiting_.pop_front();
    stream_->write(std::move(next));
  }

  std::unique_ptr<Stream> stream_;
  std::deque<OutgoingMessage> waiting_;
  std::optional<Bytes> kept_;
  bool writing_ = false, closing_ = false;
};

class Session final : public Acceptor {
 public:
  Session(const std::uint8_t* data, std::size_t size)
      : input_(data, size),
        network_(/*seed=*/1, MemoryFaults{}),
        ours_(&network_.endpoint("victim"), arena(), /*window_bytes=*/4096),
        paced_(&network_.endpoint("peer"), arena(), /*window_bytes=*/4096) {
    const std::uint8_t which = input_.byte();
    const std::uint8_t job = input_.byte();
    Transport& from =
        which / 3 % 2 == 0 ? static_cast<Transport&>(paced_) : network_.endpoint("peer");
    POSEIDON_CHECK(from.listen("peer", this).ok(), "a free address");
    if (which >= 128) {
      port_ = std::make_unique<RelayPort>(&ours_, job);
    } else if (which % 3 == 0) {
      port_ = std::make_unique<ShardPort>(&ours_, job);
    } else if (which % 3 == 1) {
      port_ = std::make_unique<StorePort>(&ours_);
    } else {
      port_ = std::make_unique<FactorPort>(&ours_, job);
    }
    pass(Milliseconds(3));
  }

  void run() {
    for (int i = 0; i < kMaxSteps && !input_.rest().empty(); ++i) {
      step();
      pass(Milliseconds(3));
      port_->check();
    }
  }

  /// The victim's own stream, to the worker after it or, of a relay, to its server.
  StreamHandler* on_accept(std::unique_ptr<Stream> stream) override {
    peers_[kPeers].open(std::move(stream));
    return &peers_[kPeers];
  }

 private:
  void step() {
    const std::uint8_t what = input_.byte();
    Peer& peer = peers_[what / 16 % peers_.size()];
    switch (what % 16) {
      case 0:
        if (&peer != &peers_[kPeers]) peer.open(paced_.connect("victim", &peer));
        break;
      case 1:
        if (&peer != &peers_[kPeers]) peer.open(network_.endpoint("peer").connect("victim", &peer));
        break;
      case 2:
        peer.close();
        break;
      case 3:
        peer.cut();
        break;
      case 4:
        port_->act(input_.byte());
        break;
      case 5:
        peer.say(raw());
        break;
      case 6:
        peer.say(offer());
        break;
      case 7:
        peer.say(headed());
        break;
      case 8:
        // Deadlines pass, and who was lost is looked for again.
        pass(Milliseconds(250) * input_.byte());
        break;
      default:
        peer.say(believable());
        break;
    }
  }

  OutgoingMessage believable() {
    const Words words = port_->believable(input_);
    return message_of(words.prefix, words.payload);
  }

  OutgoingMessage raw() {
    const std::string bytes(input_.rest().substr(0, input_.byte()));
    for (std::size_t i = 0; i < bytes.size(); ++i) input_.byte();
    return message_of(MessagePrefix(bytes));
  }

  /// As a stream of ours begins: of memory that is there, or of some that is not.
  OutgoingMessage offer() {
    const std::uint8_t how = input_.byte();
    const ArenaAddress address = arena()->address();
    v1::StreamHeader header;
    v1::SharedMemoryOffer& offered = *header.mutable_offer();
    offered.set_machine(address.machine);
    offered.set_process_id(how % 8 == 1 ? 1 : address.process_id);
    offered.set_file_descriptor(how % 8 == 2 ? how / 8 : address.file_descriptor);
    offered.set_nonce_low(address.nonce_low);
    offered.set_nonce_high(address.nonce_high + (how % 8 == 3 ? 1 : 0));
    offered.set_bytes(how % 8 == 4 ? address.bytes * 2 : how % 8 == 5 ? 0 : address.bytes);
    header.set_accepted(how < 128);
    return message_of(MessagePrefix(header.SerializeAsString()));
  }

  /// With a header in front as ours have it, whose numbers are the input's.
  OutgoingMessage headed() {
    const std::uint8_t how = input_.byte();
    StreamHeader header;
    const auto number = [this] {
      const std::uint8_t byte = input_.byte();
      return byte < 250 ? std::uint64_t{byte} : std::numeric_limits<std::uint64_t>::max() - byte;
    };
    header.accepted = how % 2 == 1;
    header.asks = how / 2 % 2 == 1;
    if (how / 4 % 2 == 1) header.delivered = number();
    header.released_count = how / 8 % 4;
    for (std::size_t i = 0; i < header.released_count; ++i) header.released[i] = number();
    Words words;
    if (how < 128) words = port_->believable(input_);
    if (how / 32 % 2 == 1) {  // it stays in memory, or so we say
      const std::span<std::byte> memory = shared_payloads().first(words.payload.size());
      std::ranges::copy(std::as_bytes(std::span(words.payload)), memory.begin());
      header.payload_offset = *arena()->offset_of(memory) + number() * 512;
      header.payload_bytes = words.payload.size() + number();
      words.payload.clear();
    }
    MessagePrefix prefix;
    append_stream_header(header, prefix);
    prefix.append(words.prefix.view());
    return message_of(std::move(prefix), words.payload);
  }

  void pass(Nanoseconds time) {
    bool over = false;
    network_.endpoint("peer").post_after(time, [&over] { over = true; });
    // Bounded: what a stream does again and again takes time.
    for (int i = 0; i < 100000 && !over; ++i) {
      POSEIDON_CHECK(network_.step(), "the end of the time is to come");
    }
    POSEIDON_CHECK(over, "time passes");
  }

  Input input_;
  std::array<Peer, kPeers + 1> peers_;  ///< the last one is found by the victim
  MemoryNetwork network_;
  PacedTransport ours_, paced_;
  std::unique_ptr<Port> port_;
};

}  // namespace
}  // namespace poseidon::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // It logs every text that is no UTF-8.
  google::protobuf::SetLogHandler(nullptr);
  poseidon::fuzz::Session(data, size).run();
  return 0;
}
