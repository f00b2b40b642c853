#pragma once

// One Trace call: sends TraceRun's parts to the operator, one after the other. Part of service.cc;
// no other file includes this.
//
// Lock order: Cluster's mutex, then mutex_; Cluster is never called with mutex_ held.
//
// Called by: coordinator/service.cc. Calls: coordinator/cluster/cluster.h.

#include <deque>
#include <memory>

#include "common/grpc/grpc_status.h"
#include "common/threads/mutex.h"
#include "coordinator/cluster/cluster.h"
#include "coordinator/watch/trace_sink.h"
#include "grpcpp/grpcpp.h"

namespace poseidon {

/// Keeps itself alive until OnDone.
class TraceStream final : public grpc::ServerWriteReactor<v1::TracePart>, public TraceSink {
 public:
  explicit TraceStream(Cluster* cluster) : cluster_(cluster) {}

  static TraceStream* open(Cluster* cluster, const v1::TraceRequest& request) {
    auto stream = std::make_shared<TraceStream>(cluster);
    {
      const MutexLock lock(stream->mutex_);
      stream->self_ = stream;
    }
    if (const absl::Status begun = cluster->begin_trace(request, stream); !begun.ok()) {
      stream->finish(begun);
    }
    return stream.get();
  }

  // TraceSink
  void write(const v1::TracePart& part) override {
    const MutexLock lock(mutex_);
    if (closing_) return;
    outgoing_.push_back(part);
    write_locked();
  }
  void finish(const absl::Status& status) override {
    const MutexLock lock(mutex_);
    if (closing_) return;
    closing_ = true;
    status_ = status;
    write_locked();
  }

  // gRPC
  void OnWriteDone(bool ok) override {
    bool all = false;
    {
      const MutexLock lock(mutex_);
      writing_ = false;
      outgoing_.pop_front();
      if (!ok) outgoing_.clear();
      all = outgoing_.empty() && !closing_;
      write_locked();
    }
    if (all) cluster_->on_trace_written(this);
  }
  void OnCancel() override {
    cluster_->on_trace_cancelled(this);
    finish(absl::CancelledError("the operator has gone"));
  }
  void OnDone() override {
    std::shared_ptr<TraceStream> self;  // declared first: dies after the lock
    const MutexLock lock(mutex_);
    self = std::move(self_);
  }

 private:
  void write_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      finished_ = true;
      Finish(to_grpc(status_));
    }
  }

  Cluster* const cluster_;
  Mutex mutex_;
  std::deque<v1::TracePart> outgoing_
      ABSL_GUARDED_BY(mutex_);  ///< the front is gRPC's while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false, closing_ ABSL_GUARDED_BY(mutex_) = false,
                finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TraceStream> self_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace poseidon
