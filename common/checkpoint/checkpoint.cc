#include "common/checkpoint/checkpoint.h"

#include <algorithm>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/files/json_fields.h"
#include "common/plan/chunking.h"

namespace poseidon {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxManifestBytes = std::size_t{512} << 20;
constexpr std::size_t kMaxPieces = std::size_t{4} << 20;
constexpr std::size_t kMaxStores = 65536;
constexpr std::int64_t kMaxIndex = std::numeric_limits<std::uint32_t>::max() - 1;
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

absl::StatusOr<CheckpointPiece> read_piece(const Json& json, std::string_view source,
                                           const std::string& path, std::size_t stores,
                                           std::uint32_t workers) {
  JsonFields fields(json, source, path);
  CheckpointPiece piece;
  std::int64_t layer = 0, holder = 0, giver = 0, second = 0;
  fields.require("holder");
  fields.integer("layer", &layer, 0, kMaxIndex);
  fields.integer("offset", &piece.offset, 0, kAny);
  fields.integer("elements", &piece.elements, 0, kAny / 2);
  fields.integer("holder", &holder, 0, static_cast<std::int64_t>(stores) - 1);
  fields.integer("giver", &giver, 0, static_cast<std::int64_t>(workers) - 1);
  fields.integer("second", &second, 0, static_cast<std::int64_t>(stores) - 1);
  const bool has_layer = fields.has("layer"), has_giver = fields.has("giver"),
             has_second = fields.has("second");
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  if (has_layer) piece.layer = LayerIndex(static_cast<std::uint32_t>(layer));
  if (has_giver) piece.giver = WorkerRank(static_cast<std::uint32_t>(giver));
  piece.holder = ServerIndex(static_cast<std::uint32_t>(holder));
  if (has_second) piece.second = ServerIndex(static_cast<std::uint32_t>(second));
  if (piece.second == piece.holder) {
    return absl::InvalidArgumentError(str_cat(
        source, ": ", path, ".second: expected another store than the holder, got ", holder));
  }
  return piece;
}

}  // namespace

std::vector<CheckpointPiece> checkpoint_pieces(const Plan& plan, std::int64_t chunk_bytes,
                                               std::int64_t replicas) {
  std::vector<CheckpointPiece> pieces;
  pieces.reserve(plan.chunks.size() + 1);
  for (const PlanChunk& chunk : plan.chunks) {
    pieces.push_back({.layer = chunk.layer,
                      .offset = chunk.offset,
                      .elements = chunk.elements,
                      .holder = chunk.server,
                      .giver = std::nullopt});
  }
  const std::int64_t piece_elements = std::min(chunk_bytes, kMaxGivenPieceBytes) / kElementBytes;
  POSEIDON_CHECK(piece_elements > 0, "a piece holds an element");
  std::uint32_t given = 0;
  for (std::uint32_t l = 0; l < plan.layers.size(); ++l) {
    if (plan.layers[l].scheme != Scheme::kSfb) continue;
    const std::int64_t all = plan.layers[l].parameters;
    for (std::int64_t at = 0; at < all; at += piece_elements, ++given) {
      pieces.push_back({.layer = LayerIndex(l),
                        .offset = at,
                        .elements = std::min(piece_elements, all - at),
                        .holder = ServerIndex(given % plan.servers()),
                        .giver = WorkerRank(given % plan.workers())});
    }
  }
  pieces.push_back({.layer = std::nullopt, .holder = ServerIndex(0), .giver = WorkerRank(0)});
  if (replicas > 1 && plan.servers() > 1) {
    for (CheckpointPiece& piece : pieces) {
      piece.second = ServerIndex((piece.holder.value() + 1) % plan.servers());
    }
  }
  return pieces;
}

std::size_t pieces_at(const std::vector<CheckpointPiece>& pieces, ServerIndex server) {
  return static_cast<std::size_t>(
      std::count_if(pieces.begin(), pieces.end(), [server](const CheckpointPiece& piece) {
        return piece.holder == server || piece.second == server;
      }));
}

absl::Status check_replicas(std::int64_t replicas, std::size_t servers) {
  if (replicas <= static_cast<std::int64_t>(servers)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint.replicas: ", replicas, " copies on different servers, but the job has ", servers,
      ": start another poseidon-server, or set it to 1"));
}

PieceIndex::PieceIndex(const std::vector<CheckpointPiece>& pieces) : pieces_(pieces) {
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].layer) of_layer_[*pieces[i].layer].emplace_back(i);
  }
}

absl::StatusOr<std::vector<PieceRange>> PieceIndex::covering(LayerIndex layer, std::int64_t offset,
                                                             std::int64_t elements) const {
  std::vector<PieceRange> ranges;
  const std::int64_t end = offset + elements;
  std::int64_t at = offset;
  const auto found = of_layer_.find(layer);
  const std::span<const PieceId> ids =
      found == of_layer_.end() ? std::span<const PieceId>() : found->second;
  // In ascending order by construction; foreign pieces in another order look like a hole.
  const auto first = std::ranges::partition_point(ids, [&](PieceId id) {
    const CheckpointPiece& piece = pieces_[id.value()];
    return piece.offset + piece.elements <= offset;
  });
  for (const PieceId id : ids.subspan(static_cast<std::size_t>(first - ids.begin()))) {
    const CheckpointPiece& piece = pieces_[id.value()];
    if (at >= end || piece.offset > at) break;
    if (piece.offset + piece.elements <= at) continue;
    const std::int64_t upto = std::min(end, piece.offset + piece.elements);
    ranges.push_back({.piece = id,
                      .in_piece = at - piece.offset,
                      .in_range = at - offset,
                      .elements = upto - at});
    at = upto;
  }
  if (at < end) {
    return absl::DataLossError(
        absl::StrCat("the checkpoint has no piece with element ", at, " of layer ", layer.value()));
  }
  return ranges;
}

std::vector<bool> stores_in_use(const CheckpointManifest& manifest) {
  std::vector<bool> in_use(manifest.stores.size(), false);
  for (const CheckpointPiece& piece : manifest.pieces) {
    in_use[piece.holder.value()] = true;
    if (piece.second) in_use[piece.second->value()] = true;
  }
  return in_use;
}

bool is_reachable(const CheckpointManifest& manifest, const std::vector<bool>& here) {
  return std::all_of(
      manifest.pieces.begin(), manifest.pieces.end(), [&here](const CheckpointPiece& piece) {
        return here[piece.holder.value()] || (piece.second && here[piece.second->value()]);
      });
}

std::string missing_stores(const CheckpointManifest& manifest,
                           const std::function<bool(const std::string& identity)>& is_here) {
  std::vector<bool> here;
  for (const std::string& store : manifest.stores) here.push_back(is_here(store));
  if (is_reachable(manifest, here)) return "";
  const std::vector<bool> in_use = stores_in_use(manifest);
  std::vector<std::string> missing;
  for (std::size_t s = 0; s < in_use.size(); ++s) {
    if (in_use[s] && !here[s]) missing.push_back(manifest.stores[s]);
  }
  return absl::StrCat(missing.size() == 1 ? "the server whose --data-dir has STORE_IDENTITY "
                                          : "the servers whose --data-dir have STORE_IDENTITY ",
                      absl::StrJoin(missing, ", "), ", with a part of checkpoint ",
                      snapshot_name(manifest.snapshot));
}

std::string manifest_to_json(const CheckpointManifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = 1;
  json["id"] = snapshot_name(manifest.snapshot);
  json["job_id"] = manifest.job_id;
  json["job_name"] = manifest.job_name;
  json["run_directory"] = manifest.run_directory;
  json["workers"] = manifest.workers;
  json["begun_with"] = manifest.begun_with;
  json["samples"] = manifest.samples;
  if (manifest.loss) json["loss"] = *manifest.loss;
  json["time_unix_s"] = manifest.time_unix_s;
  json["bytes"] = manifest.bytes;
  json["stores"] = manifest.stores;
  if (manifest.data) json["data"] = data_identity_to_json(*manifest.data);
  json["plan"] = plan_pin_to_json(manifest.plan);
  json["pieces"] = nlohmann::ordered_json::array();
  for (const CheckpointPiece& piece : manifest.pieces) {
    nlohmann::ordered_json entry;
    if (piece.layer) entry["layer"] = piece.layer->value();
    entry["offset"] = piece.offset;
    entry["elements"] = piece.elements;
    entry["holder"] = piece.holder.value();
    if (piece.giver) entry["giver"] = piece.giver->value();
    if (piece.second) entry["second"] = piece.second->value();
    json["pieces"].push_back(std::move(entry));
  }
  json["job"] = manifest.job_json;
  return checked_json(json);
}

absl::StatusOr<CheckpointManifest> manifest_from_json(std::string_view text,
                                                      std::string_view source) {
  POSEIDON_ASSIGN_OR_RETURN(const Json json,
                            parse_checked_json(text, source, {.max_bytes = kMaxManifestBytes}));
  JsonFields fields(json, source, "");
  CheckpointManifest manifest;
  std::int64_t format = 0, workers = 0, begun_with = 0, samples = 0;
  double loss = 0.0;
  std::string id;
  for (const char* key :
       {"format", "id", "job_id", "job_name", "run_directory", "workers", "begun_with", "samples",
        "time_unix_s", "bytes", "stores", "plan", "pieces", "job"}) {
    fields.require(key);
  }
  fields.integer("format", &format, 1, 1);
  fields.string("id", &id);
  fields.string("job_id", &manifest.job_id);
  fields.string("job_name", &manifest.job_name);
  fields.string("run_directory", &manifest.run_directory);
  const Json* job = fields.value("job");
  const Json* plan = fields.value("plan");
  const Json* data = fields.value("data");
  fields.integer("workers", &workers, 1, kMaxIndex);
  fields.integer("begun_with", &begun_with, 1, kMaxIndex);
  fields.integer("samples", &samples, 0, kAny);
  fields.integer("time_unix_s", &manifest.time_unix_s, 0, kAny);
  fields.integer("bytes", &manifest.bytes, 0, kAny);
  fields.number("loss", &loss, {});
  const bool has_loss = fields.has("loss");
  const Json* stores = fields.array("stores", "stores", 1, kMaxStores);
  const Json* pieces = fields.array("pieces", "pieces", 1, kMaxPieces);
  POSEIDON_RETURN_IF_ERROR(fields.finish());
  if (!job->is_string()) {
    return absl::InvalidArgumentError(
        str_cat(source, ": job: expected the job's text, got ", json_excerpt(*job)));
  }
  manifest.job_json = job->get<std::string>();
  const std::optional<SnapshotId> snapshot = parse_snapshot_name(id);
  if (!snapshot) {
    return absl::InvalidArgumentError(
        str_cat(source, ": id: expected EPOCH-ITERATION, got \"", id, "\""));
  }
  manifest.snapshot = *snapshot;
  manifest.workers = static_cast<std::uint32_t>(workers);
  manifest.begun_with = static_cast<std::uint32_t>(begun_with);
  manifest.samples = static_cast<std::uint64_t>(samples);
  if (has_loss) manifest.loss = loss;
  for (const Json& store : *stores) {
    if (!store.is_string() || !is_store_identity(store.get<std::string>())) {
      return absl::InvalidArgumentError(
          str_cat(source, ": stores: expected identities of 32 hexadecimal digits, got ",
                  json_excerpt(store)));
    }
    manifest.stores.push_back(store.get<std::string>());
  }
  if (data != nullptr) {
    POSEIDON_ASSIGN_OR_RETURN(manifest.data, data_identity_from_json(*data, source, "data"));
  }
  POSEIDON_ASSIGN_OR_RETURN(manifest.plan, plan_pin_from_json(*plan, source));
  if (!manifest.plan.leaders.empty() && manifest.plan.leaders.size() != manifest.workers) {
    return absl::InvalidArgumentError(str_cat(source, ": plan.local_groups: groups of ",
                                              manifest.plan.leaders.size(), " workers, it is of ",
                                              manifest.workers));
  }
  for (const Json& piece : *pieces) {
    const std::string path = str_cat("pieces[", manifest.pieces.size(), "]");
    POSEIDON_ASSIGN_OR_RETURN(
        CheckpointPiece read,
        read_piece(piece, source, path, manifest.stores.size(), manifest.workers));
    manifest.pieces.push_back(read);
  }
  const PieceIndex index(manifest.pieces);
  for (std::uint32_t l = 0; l < manifest.plan.layers.size(); ++l) {
    const auto covered = index.covering(LayerIndex(l), 0, manifest.plan.layers[l].parameters);
    if (!covered.ok()) {
      return absl::InvalidArgumentError(str_cat(source, ": ", covered.status().message()));
    }
  }
  return manifest;
}

bool is_store_identity(std::string_view text) {
  return text.size() == 32 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace poseidon
