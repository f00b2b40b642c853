// Writes the seeds of tests/fuzz/corpus: small examples from our own encoders, and examples of
// foreign formats. Run from the source folder:
//   build/asan/fuzz/fuzz_seeds tests/fuzz/corpus
// Regressions are beside them, in files named after the fault. seeds_test.sh compares the
// checked-in seeds with this program's; certificates have new keys each time.

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint.h"
#include "common/files/safetensors.h"
#include "common/plan/plan_pin.h"
#include "common/plan/plan_proto.h"
#include "common/probes/stage.h"
#include "common/security/certificates.h"
#include "common/transport/stream_header.h"
#include "common/wire/factor_wire.h"
#include "common/wire/norm_wire.h"
#include "common/wire/store_wire.h"
#include "common/wire/wire.h"
#include "coordinator/records/durable_job.h"
#include "models/shipped.h"
#include "server/store/snapshot_index.h"
#include "tests/fuzz/seeds.h"
#include "tests/support/golden_images.h"
#include "tests/support/toy_plan.h"
#include "worker/data/formats/record_format.h"
#include "worker/data/formats/test_files.h"

namespace poseidon::fuzz {
namespace {

namespace fs = std::filesystem;

/// Without the first line's checksum, which no changed document gets past.
std::string unchecked(std::string record) { return record.erase(2, record.find('\n', 2) - 1); }

Plan plan() {
  Plan made = testing_support::toy_plan(3, 2, {10, 12, 7}, 4);
  testing_support::send_by_factors(made, LayerIndex(1), 3, 4);
  made.worker_addresses = {"10.0.0.1:4702", "10.0.0.2:4702", "[::1]:4702"};
  made.layers[1].reason = "sfb moves 84 bytes, ps 96";
  return made;
}

void add_wire(Seeds& seeds) {
  const auto add = [&](const char* name, int what, const std::string& message) {
    seeds.add("wire", name,
              choosing(what) + choosing(static_cast<int>(message.size() / 2)) + message);
  };
  const Plan of = plan();
  ChunkHeader chunk{.kind = ChunkKind::kPushGradient,
                    .epoch = of.epoch,
                    .iteration = 3,
                    .rank = WorkerRank(1),
                    .chunk = ChunkId(1),
                    .offset = 4,
                    .element_type = ElementType::kFloat32};
  add("push", 0, encode_prefix(chunk, 16).str() + std::string(16, '\x3f'));
  chunk.kind = ChunkKind::kPull;
  chunk.element_type = ElementType::kNone;
  add("pull", 0, encode_prefix(chunk, 0).str());
  const FactorHeader factor{.kind = FactorKind::kInput,
                            .epoch = of.epoch,
                            .iteration = 3,
                            .rank = WorkerRank(2),
                            .layer = LayerIndex(1),
                            .rows = 1,
                            .offset = 0,
                            .element_type = ElementType::kFloat32,
                            .digest = 0};
  add("factor", 1, encode_prefix(factor, 16).str() + std::string(16, '\x3f'));
  add("hello", 1, encode_prefix(FactorHeader{.epoch = of.epoch, .rank = WorkerRank(1)}, 0).str());
  const StoreHeader store{.operation = StoreOperation::kWrite,
                          .request = 7,
                          .snapshot = snapshot_id(Epoch(5), 40),
                          .piece = PieceId(2),
                          .slot = 1,
                          .error_code = 0};
  add("store", 2, encode_prefix(store, 8).str() + std::string(8, 'x'));
  StreamHeader header;
  header.accepted = true;
  header.payload_offset = 4096;
  header.payload_bytes = 16;
  header.delivered = 9;
  header.released = {1, 2, 300};
  header.released_count = 3;
  MessagePrefix prefix;
  append_stream_header(header, prefix);
  add("stream-header", 3, prefix.str() + encode_prefix(chunk, 0).str());
  add("norms", 4, encode_norms({{.gradient = 1.5, .parameters = 2.0}, {.gradient = 0.0}}));
  add("snapshot-index", 6,
      encode_index({{PieceId(0), {.version = 40, .first = 1, .elements = {12, 12, 0}}},
                    {PieceId(3), {.version = 41, .first = 3, .elements = {7, 7, 7}}}}));
  add("snapshot-key", 6, encode_key({snapshot_id(Epoch(5), 40), 7}));
  add("totals", 5, encode_totals({.all_gradients = 3.0, .tensors = {{.gradient = 1.5}}}));
}

void add_control(Seeds& seeds) {
  v1::NodeMessage join;
  join.mutable_join()->set_protocol_version(kProtocolVersion);
  join.mutable_join()->set_role(v1::NODE_ROLE_WORKER);
  join.mutable_join()->set_address("0.0.0.0:4702");
  join.mutable_join()->set_device("cpu");
  join.mutable_join()->set_metrics_address("10.0.0.2:9462");
  seeds.add("control", "join", choosing(0) + join.SerializeAsString());
  v1::NodeMessage failed;
  failed.mutable_failed()->set_reason("no\nsuch \x1b[31mfile");
  seeds.add("control", "failed", choosing(0) + failed.SerializeAsString());
  seeds.add("control", "plan", choosing(1) + plan_to_message(plan()).SerializeAsString());
  seeds.add("control", "peer", choosing(2) + "ipv6:%5B::1%5D:4711");
}

/// Of certificates_fuzz.cc: the bits of the first byte.
constexpr int kDer = 1, kAnswers = 2, kWorkersWanted = 4 << static_cast<int>(PeerRole::kWorker);

std::string der_of(const std::string& pem) {
  const std::string text = absl::StrReplaceAll(
      pem, {{"-----BEGIN CERTIFICATE-----", ""}, {"-----END CERTIFICATE-----", ""}, {"\n", ""}});
  std::string der;
  POSEIDON_CHECK(absl::Base64Unescape(text, &der), "PEM is base64");
  return der;
}

void add_certificates(Seeds& seeds) {
  constexpr std::int64_t kNow = 1'800'000'000, kDay = 86400;
  constexpr Validity kAYear{.from_unix_s = kNow - kDay, .until_unix_s = kNow + 365 * kDay};
  const auto authority = make_authority("our authority", kAYear);
  POSEIDON_CHECK(authority.ok(), "made");
  const auto node = [&](PeerRole role, const std::string& name, Validity validity) {
    const auto made = issue_certificate(*authority, role, name, validity);
    POSEIDON_CHECK(made.ok(), "signed");
    return made->certificate_pem;
  };
  const std::string worker = node(PeerRole::kWorker, "worker-1", kAYear);
  const std::string ca = authority->certificate_pem;
  seeds.add("certificates", "worker", choosing(kWorkersWanted) + worker + ca);
  seeds.add("certificates", "worker-der",
            choosing(kDer + kWorkersWanted) + der_of(worker) + der_of(ca));
  seeds.add("certificates", "operator-answers",
            choosing(kDer + kAnswers + kWorkersWanted) +
                der_of(node(PeerRole::kOperator, "o\"\u00e4,\\", kAYear)) + der_of(ca));
  seeds.add("certificates", "expired",
            choosing(kDer + kWorkersWanted) +
                der_of(node(PeerRole::kWorker, "worker-2", {kNow - kDay, kNow - 1})) + der_of(ca));
  seeds.add("certificates", "signs-itself", choosing(kDer + kWorkersWanted) + der_of(ca));
  seeds.add("certificates", "other-authority",
            choosing(kDer + kWorkersWanted) + der_of(worker) + der_of(worker));
}

/// Of trace_fuzz.cc: as it was on the wire.
template <typename Message>
std::string told(int what, const Message& message) {
  const std::string bytes = message.SerializeAsString();
  return choosing(what) + choosing(static_cast<int>(bytes.size() / 256)) +
         choosing(static_cast<int>(bytes.size() % 256)) + bytes;
}

/// Two iterations of two workers and a server: once in messages, once in steps.
void add_trace(Seeds& seeds) {
  v1::TracePart head;
  head.mutable_head()->set_job("toy");
  head.mutable_head()->set_job_id("toy-1");
  head.mutable_head()->set_iterations(2);
  *head.mutable_head()->mutable_plan() = plan_to_message(plan());
  std::string messages = told(0, head);
  std::string steps = bytes_of({3, 8, 50, 0, 25, 3, 8, 50, 1, 25});
  v1::GetStatusResponse status;
  status.set_job("toy");
  status.set_job_id("toy-1");
  status.set_state("running");
  for (const int who : {0, 2, 1}) {  // worker 0, worker 1, server 0
    const bool is_server = who % 2 == 1;
    v1::TracePart node, events;
    node.mutable_node()->set_role(is_server ? v1::NODE_ROLE_SERVER : v1::NODE_ROLE_WORKER);
    node.mutable_node()->set_index(static_cast<std::uint32_t>(who / 2));
    node.mutable_node()->set_address("10.0.0." + std::to_string(who) + ":4702");
    node.mutable_node()->set_clock_offset_ns(-5000);
    node.mutable_node()->set_clock_echoes(3);
    steps += bytes_of({2, who, 5, 1});
    v1::NodeStatus& told_of = is_server ? *status.add_servers() : *status.add_workers();
    told_of.set_rank(who / 2);
    told_of.set_state("running");
    told_of.mutable_load()->set_machine(7);
    told_of.mutable_load()->set_cores(2);
    told_of.mutable_load()->set_cores_used(1.5);
    told_of.mutable_load()->set_cores_wanted(1.0);
    for (const int iteration : {0, 1}) {
      const auto happens = [&](Stage stage, int begin, int took) {
        v1::TraceEvent& event = *events.mutable_events()->add_events();
        event.set_stage(static_cast<std::uint32_t>(stage));
        event.set_begin_ns(static_cast<std::uint64_t>(iteration * 100 + begin) * 100'000);
        event.set_duration_ns(static_cast<std::uint64_t>(took) * 100'000);
        event.set_iteration(static_cast<std::uint64_t>(iteration));
        event.set_layer(1);
        event.set_chunk(1);
        event.set_peer(1);
        event.set_bytes(100'000);
        steps += bytes_of({5, static_cast<int>(stage), iteration * 100 + begin, took, iteration, 1,
                           1, 1, 100, 0});
      };
      if (is_server) {
        happens(Stage::kSum, 20, 20);
        happens(Stage::kSend, 45, 15);
      } else {
        happens(Stage::kForward, 0, 5);
        happens(Stage::kBackward, 5, 5);
        happens(Stage::kSend, 10, 10);
        happens(Stage::kCopy, 60, 5);
        happens(Stage::kStall, 20, 60);
      }
    }
    messages += told(0, node) + told(0, events);
    steps += bytes_of({4, who, 16, 8, 4, 7, 2, 24, 16, 0, 32, 0});
  }
  v1::TracePart tail;
  tail.mutable_tail()->add_notes("one is missing");
  messages += told(0, tail);
  seeds.add("trace", "messages", messages + told(1, status));
  seeds.add("trace", "steps", steps);
}

std::string whole_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  POSEIDON_CHECK(file.good(), "started in the source folder");
  return {std::istreambuf_iterator<char>(file), {}};
}

void add_text(Seeds& seeds) {
  seeds.add("job", "digits", whole_file("deploy/jobs/digits.json"));
  seeds.add("job", "images", whole_file("tests/golden/trajectory/job.json"));
  seeds.add(
      "job", "all",
      R"({"name": "n", "model": {"layers": []}, "init": {"weights": "w", "rename": {"a": "b"}},
    "data": {"train": {"format": "records", "path": "p"}, "test": {"format": "cifar100", "files": ["f"], "label_kind": "fine"},
      "max_corrupt_share": 0.5, "transform": {"random_resized_crop": {"size": 8, "scale": [0.1, 1], "ratio": [0.5, 2]},
      "mirror": true, "colour": {"brightness": 0.4, "hue": 0.1}, "mean": [1, 2, 3], "std": [1, 2, 3]}},
    "batch_size": 8, "micro_batches": 2, "iterations": 9,
    "optimizer": {"type": "adam", "learning_rate": 0.1, "schedule": {"type": "cosine", "iterations": 9}},
    "sync": {"scheme": {"fc": "sfb"}, "cost": "bytes", "replan": false, "wire_dtype": "bf16", "send_order": "ready", "local_aggregation": "off", "chunk_bytes": 4096},
    "checkpoint": {"every_iterations": 3, "keep": 1, "replicas": 2},
    "membership": {"min_workers": 1, "max_workers": 4, "replace_timeout_ms": 10}, "test_every_iterations": 3})");
  const std::string declared =
      R"({"name": "train.py", "declared": [{"name": "emb", "tensors": [{"shape": [16, 8]}]},
    {"name": "fc", "type": "linear", "multiply_adds": 256,
     "tensors": [{"name": "weight", "shape": [32, 8]}, {"name": "bias", "shape": []}]}],
    "state": [{"name": "norm.running_mean", "shape": [8]}]})";
  seeds.add("network", "declared", declared);
  seeds.add("job", "declared",
            absl::StrCat(R"({"name": "n", "model": )", declared,
                         R"(, "optimizer": {"type": "sgd", "learning_rate": 0.1}})"));
  for (const std::string& name : shipped_model_names()) {
    seeds.add("network", name, std::string(*shipped_model(name)));
  }
  const Plan of = plan();
  const PlanPin pin = pin_of(of);
  seeds.add("documents", "plan", choosing(0) + plan_pin_to_json(pin).dump());
  CheckpointManifest manifest;
  manifest.snapshot = snapshot_id(of.epoch, 400);
  manifest.job_id = "toy-5";
  manifest.job_name = "toy";
  manifest.job_json = "{}";
  manifest.run_directory = "/runs/toy";
  manifest.workers = of.workers();
  manifest.begun_with = 3;
  manifest.samples = 12'800;
  manifest.loss = 0.25;
  manifest.time_unix_s = 1'700'000'000;
  manifest.bytes = 276;
  manifest.stores = {std::string(32, 'a'), std::string(32, '0')};
  manifest.pieces = checkpoint_pieces(of, 16, 2);
  manifest.plan = pin;
  seeds.add("documents", "manifest", choosing(1) + unchecked(manifest_to_json(manifest)));
  DurableJob job{.id = "digits-3",
                 .job_json = "{}",
                 .run_directory = "/runs/3",
                 .workers = 3,
                 .servers = 2,
                 .source = std::nullopt,
                 .running = std::nullopt};
  seeds.add("documents", "job", choosing(2) + unchecked(durable_job_to_json(job)));
  seeds.add("documents", "checked-job", choosing(2) + durable_job_to_json(job));
  DurableJob::Running running;
  running.plan = of;
  std::uint64_t id = 1;
  for (const std::string& address : of.worker_addresses) {
    NodeInfo& node = running.workers.emplace_back();
    node.id = NodeId(id++);
    node.role = NodeRole::kWorker;
    node.address = address;
  }
  for (const std::string& address : of.server_addresses) {
    NodeInfo& node = running.servers.emplace_back();
    node.id = NodeId(id++);
    node.role = NodeRole::kServer;
    node.address = address;
  }
  job.running = std::move(running);
  seeds.add("documents", "running-job", choosing(2) + unchecked(durable_job_to_json(job)));
  seeds.add(
      "documents", "metrics",
      choosing(3) +
          "{\"iteration\":0,\"loss\":2.5,\"learning_rate\":0.1,\"images_per_s\":10.5}\n"
          "{\"iteration\":1,\"test_loss\":2.25,\"test_accuracy\":0.5}\n{\"iteration\":1,\"lo");
  seeds.add("documents", "config",
            choosing(4) + R"({"listen": "127.0.0.1:4700", "no-shared-memory": true})");
  const auto status = [](std::uint64_t reports) {
    v1::GetStatusResponse status;
    status.set_job_id("toy-1");
    status.set_epoch(3);
    status.mutable_counters()->set_checkpoints_failed(reports);
    v1::NodeStatus& worker = *status.add_workers();
    worker.mutable_counters()->set_reports(reports);
    v1::NodeCounters& computed = *worker.mutable_counters()->mutable_counters();
    computed.set_epoch(3);
    computed.set_retries_server(reports);
    computed.set_compute_iterations(100 * reports);
    computed.set_compute_seconds(static_cast<double>(reports * reports));
    computed.set_gpu_utilization(0.5);
    v1::NodeStatus& server = *status.add_servers();
    server.mutable_counters()->set_reports(reports);
    v1::NodeCounters& stored = *server.mutable_counters()->mutable_counters();
    stored.set_epoch(3);
    stored.set_disk_bytes(100'000'000'000);
    stored.set_disk_free_bytes(1'000'000'000);
    stored.set_paused_streams(1);
    v1::RefusedCount& refused = *server.mutable_counters()->add_refused_messages();
    refused.set_reason("length\n");
    refused.set_count(3 * reports);
    return status.SerializeAsString();
  };
  // Both are of one length: the second begins in the middle.
  seeds.add("documents", "counters", choosing(5) + choosing(128) + status(10) + status(20));
}

void add_data(Seeds& seeds) {
  const std::string idx = idx_bytes({2, 2, 3}, "abcdefghijkl");
  seeds.add("idx", "plain", choosing(0) + idx);
  seeds.add("idx", "gzip", choosing(0) + gzip(idx));
  seeds.add("idx", "labels",
            choosing(0) + whole_file("tests/data/digits/t10k-labels-idx1-ubyte.gz"));
  seeds.add("idx", "cifar", choosing(3) + std::string(3073, '\1'));

  const std::vector<float> values = {1.0F, -2.5F, 3.0F, 4.0F, 0.0F, 6.0F};
  const std::vector<TensorView> tensors = {
      {.name = "fc.weight", .shape = {2, 2}, .values = std::span(values).first(4)},
      {.name = "fc.bias", .shape = {2}, .values = std::span(values).last(2)}};
  const auto encoded = encode_safetensors(tensors, {{"format", "pt"}});
  std::string file = encoded->header;
  for (const std::string_view part : encoded->values) file += part;
  seeds.add("safetensors", "two", file);

  const auto header = encode_record_file_header();
  std::string records(header.begin(), header.end());
  RecordIndex index;
  const std::vector<std::uint8_t> pixels = {1, 2, 3, 4};
  for (const std::uint32_t label : {0u, 1u}) {
    index.offsets.push_back(records.size());
    index.labels.push_back(label);
    const auto record = encode_record_header(Encoding::kPixels, label, pixels);
    records.append(record.begin(), record.end());
    records.append(pixels.begin(), pixels.end());
  }
  index.offsets.push_back(records.size());
  index.info.samples = 2;
  index.info.sample_shape = {1, 2, 2};
  index.info.class_names = {"cat", "dog"};
  records += encode_record_index(index);
  seeds.add("records", "two", choosing(1) + records);
  seeds.add("records", "two-as-they-are", choosing(0) + records);

  int how = 0;
  for (const auto& golden : golden_images().at("decode")) {
    std::string name = golden.at("name");
    for (char& c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
    }
    const auto bytes = from_base64(golden.at("file"));
    seeds.add("image", name, choosing(how++) + std::string(bytes.begin(), bytes.end()));
  }
}

}  // namespace
}  // namespace poseidon::fuzz

int main(int argc, char** argv) {
  using namespace poseidon::fuzz;
  if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  Seeds seeds(argv[1]);
  add_wire(seeds);
  add_tls_frames(seeds);
  add_streams(seeds);
  add_cluster(seeds);
  add_control(seeds);
  add_certificates(seeds);
  add_trace(seeds);
  add_text(seeds);
  add_data(seeds);
  return 0;
}
