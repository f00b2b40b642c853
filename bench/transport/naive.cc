// The floor: a program in the style of gRPC's tutorial. Generated stub, synchronous calls, the
// payload as a string, every default but the message size limit (4 MiB would refuse larger chunks).

#include <grpcpp/grpcpp.h>

#include <cstring>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/transport/shared_sums.h"
#include "bench/transport/variant.h"
#include "common/base/check.h"
#include "common/wire/wire.h"
#include "poseidon/v1/data.grpc.pb.h"

namespace poseidon::bench {
namespace {

v1::ChunkMessage make_message(v1::ChunkKind kind, const Plan& plan, ChunkId chunk, WorkerRank rank,
                              std::span<const float> floats) {
  v1::ChunkMessage message;
  message.set_protocol_version(kProtocolVersion);
  message.set_kind(kind);
  message.set_epoch(plan.epoch.value());
  message.set_worker_rank(rank.value());
  message.set_chunk_id(chunk.value());
  message.set_offset(static_cast<std::uint64_t>(plan.chunks[chunk.value()].offset));
  message.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  message.set_payload(floats.data(), floats.size_bytes());
  return message;
}

class NaiveService final : public v1::ParameterServer::Service {
 public:
  void assign(const Plan& plan, ServerIndex self) {
    plan_ = plan;
    sums_.emplace(plan, self);
  }

  grpc::Status Exchange(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<v1::ChunkMessage, v1::ChunkMessage>* stream) override {
    std::optional<Contributor> contributor;
    WorkerRank rank;
    v1::ChunkMessage message;
    while (stream->Read(&message)) {
      if (!contributor) {
        rank = WorkerRank(message.worker_rank());
        contributor.emplace(&*sums_, rank);
      }
      const ChunkId chunk(message.chunk_id());
      if (sums_->elements(chunk) * sizeof(float) != message.payload().size()) {
        give_up(absl::DataLossError(absl::StrCat("chunk ", chunk.value(), " does not fit")));
      }
      const auto take = [&message](std::span<float> sum, bool first) {
        std::vector<float> floats(sum.size());
        std::memcpy(floats.data(), message.payload().data(), message.payload().size());
        if (first) {
          std::ranges::copy(floats, sum.begin());
        } else {
          add_floats(floats, sum);
        }
        return absl::OkStatus();
      };
      const auto send = [&](ChunkId complete, std::span<const float> sum) {
        return stream->Write(make_message(v1::CHUNK_KIND_PARAMETERS, plan_, complete, rank, sum))
                   ? absl::OkStatus()
                   : absl::UnavailableError("the worker is gone");
      };
      if (const absl::Status status = contributor->contribute(chunk, take, send); !status.ok()) {
        give_up(status);
      }
    }
    return grpc::Status::OK;
  }

 private:
  Plan plan_;
  std::optional<SharedSums> sums_;
};

class NaiveServer final : public ServerEnd {
 public:
  absl::StatusOr<std::string> listen() override {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("cannot listen on 127.0.0.1");
    return absl::StrCat("127.0.0.1:", port);
  }

  absl::Status serve(const Plan& plan, ServerIndex self) override {
    service_.assign(plan, self);  // no call before it returns
    return absl::OkStatus();
  }

 private:
  NaiveService service_;
  std::unique_ptr<grpc::Server> server_;
};

class NaiveWorker final : public WorkerEnd {
 public:
  explicit NaiveWorker(const WorkerContext& context) : context_(context) {}
  ~NaiveWorker() override {
    for (const auto& connection : connections_) {
      if (connection->ended) continue;
      connection->stream->WritesDone();
      connection->stream->Finish();
    }
  }

  absl::Status connect() override {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
    for (const std::string& address : context_.plan->server_addresses) {
      auto& connection = connections_.emplace_back(std::make_unique<Connection>());
      connection->stub = v1::ParameterServer::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
      connection->stream = connection->stub->Exchange(&connection->context);
    }
    const std::vector<ChunkPlace>& chunks = context_.workload->chunks();
    for (std::uint32_t i = 0; i < chunks.size(); ++i) {
      connections_[chunks[i].server.value()]->chunks.emplace_back(i);
    }
    return absl::OkStatus();
  }

  absl::Status iterate(Iteration /*iteration*/) override {
    std::vector<std::future<absl::Status>> halves;
    for (const auto& connection : connections_) {
      halves.push_back(std::async(std::launch::async, [&] { return write_all(*connection); }));
      halves.push_back(std::async(std::launch::async, [&] { return read_all(*connection); }));
    }
    std::vector<absl::Status> ends;  // all of them, before a stream is asked why
    for (auto& half : halves) ends.push_back(half.get());
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (absl::IsUnavailable(ends[i])) return why_closed(*connections_[i / 2]);
      POSEIDON_RETURN_IF_ERROR(ends[i]);
    }
    return absl::OkStatus();
  }

 private:
  struct Connection {
    grpc::ClientContext context;
    std::unique_ptr<v1::ParameterServer::Stub> stub;
    std::unique_ptr<grpc::ClientReaderWriter<v1::ChunkMessage, v1::ChunkMessage>> stream;
    std::vector<ChunkId> chunks;
    bool ended = false;  ///< Finish has told why
  };

  /// Of a stream that takes or gives nothing more.
  static absl::Status why_closed(Connection& connection) {
    connection.ended = true;
    const grpc::Status status = connection.stream->Finish();
    return absl::UnavailableError(absl::StrCat("a server closed the stream: ", status.error_code(),
                                               " ", status.error_message()));
  }

  absl::Status write_all(Connection& connection) const {
    for (const ChunkId chunk : connection.chunks) {
      const ChunkPlace& place = context_.workload->chunks()[chunk.value()];
      const auto floats =
          std::as_const(*context_.workload).gradients().subspan(place.begin, place.elements);
      if (!connection.stream->Write(make_message(v1::CHUNK_KIND_PUSH_GRADIENT, *context_.plan,
                                                 chunk, context_.rank, floats))) {
        return absl::UnavailableError("a server closed the stream");
      }
    }
    return absl::OkStatus();
  }

  absl::Status read_all(Connection& connection) const {
    v1::ChunkMessage message;
    for (std::size_t i = 0; i < connection.chunks.size(); ++i) {
      if (!connection.stream->Read(&message)) {
        return absl::UnavailableError("a server closed the stream");
      }
      if (message.chunk_id() >= context_.workload->chunks().size()) {
        return absl::DataLossError(absl::StrCat("there is no chunk ", message.chunk_id()));
      }
      const ChunkPlace& place = context_.workload->chunks()[message.chunk_id()];
      const auto to = context_.workload->results().subspan(place.begin, place.elements);
      if (message.payload().size() != to.size_bytes()) {
        return absl::DataLossError(absl::StrCat("chunk ", message.chunk_id(), " has ",
                                                message.payload().size(), " bytes"));
      }
      std::memcpy(to.data(), message.payload().data(), to.size_bytes());
    }
    return absl::OkStatus();
  }

  const WorkerContext context_;
  std::vector<std::unique_ptr<Connection>> connections_;  ///< by ServerIndex
};

}  // namespace

std::unique_ptr<ServerEnd> make_naive_server(const std::shared_ptr<Security>& /*security*/) {
  return std::make_unique<NaiveServer>();
}
std::unique_ptr<WorkerEnd> make_naive_worker(const WorkerContext& context) {
  return std::make_unique<NaiveWorker>(context);
}

}  // namespace poseidon::bench
