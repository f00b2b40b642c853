// The C interface: checks what callers may get wrong, and maps results. See client/README.md.

#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/client_options.h"
#include "client/poseidon/client.h"
#include "client/program_framework.h"
#include "client/program_job.h"
#include "client/program_link.h"
#include "client/program_memory.h"
#include "client/program_node.h"
#include "common/base/check.h"
#include "common/daemon/log.h"
#include "common/memory/tensor_memory.h"
#include "models/net/model_layout.h"
#include "spdlog/spdlog.h"
#include "sync/routes/program_rates.h"

namespace {

constexpr int kAbiVersion = 2;

std::string& message_of_thread() {
  thread_local std::string message;
  return message;
}

}  // namespace

/// One thread in a call at a time: `busy`.
struct poseidon_client {
  poseidon_client(poseidon::ClientOptions client_options, poseidon::ProgramJobText text)
      : options(std::move(client_options)),
        job_json(std::move(text.json)),
        memory(std::move(text.layout)),
        link(&memory, text.gives_rates, options.join_timeout, options.wait_timeout),
        parts{.memory = &memory, .link = &link, .sums = text.sums, .initial_state = {}} {
    parts.initial_state.resize(memory.state().size());
  }

  const poseidon::ClientOptions options;
  const std::string job_json;
  const pid_t process = ::getpid();
  std::atomic<bool> busy{false};
  poseidon::ProgramMemory memory;
  poseidon::ProgramLink link;
  poseidon::ProgramParts parts;
  std::unique_ptr<poseidon::ProgramNode> node;  ///< from poseidon_join on; ends first
};

namespace {

using poseidon::ProgramLink;

poseidon_result fail(poseidon_result result, std::string message) {
  message_of_thread() = std::move(message);
  return result;
}

poseidon_result fail_invalid(std::string message) {
  return fail(POSEIDON_INVALID, std::move(message));
}

poseidon_result give(ProgramLink::Outcome outcome) {
  using Result = ProgramLink::Result;
  message_of_thread() = std::move(outcome.message);
  switch (outcome.result) {
    case Result::kOk:
      return POSEIDON_OK;
    case Result::kInvalid:
      return POSEIDON_INVALID;
    case Result::kRefused:
      return POSEIDON_REFUSED;
    case Result::kTimeout:
      return POSEIDON_TIMEOUT;
    case Result::kEnded:
      return POSEIDON_ENDED;
    case Result::kRewound:
      return POSEIDON_REWOUND;
    case Result::kFailed:
      break;
  }
  return POSEIDON_FAILED;
}

/// No exception may reach a caller in C.
template <typename Body>
poseidon_result guarded(const char* call, const Body& body) {
  message_of_thread().clear();
  try {
    return body();
  } catch (const std::exception& error) {
    return fail(POSEIDON_FAILED, absl::StrCat(call, ": ", error.what()));
  }
}

/// The same for a call of a client: by its process, and one thread at a time.
template <typename Body>
poseidon_result called(poseidon_client* client, const char* call, const Body& body) {
  if (client == nullptr) return fail_invalid(absl::StrCat(call, ": the client is null"));
  if (client->process != ::getpid()) {
    return fail_invalid(absl::StrCat(call, ": this process was forked from the client's (",
                                     client->process, "): only that one may use it"));
  }
  if (client->busy.exchange(true)) {
    return fail_invalid(absl::StrCat(call, ": another thread is in a call of this client"));
  }
  const poseidon_result result = guarded(call, body);
  client->busy = false;
  return result;
}

absl::StatusOr<poseidon::ProgramRates> rates_by_layer(const poseidon::ModelLayout& layout,
                                                      std::span<const poseidon_rate> given,
                                                      double gradient_scale) {
  std::size_t tensors = 0;
  for (const poseidon::LayoutLayer& layer : layout.layers) tensors += layer.tensors.size();
  if (given.size() != tensors) {
    return absl::InvalidArgumentError(absl::StrCat("poseidon_rates: ", given.size(), " rates for ",
                                                   tensors, " tensors: give one for each"));
  }
  if (!poseidon::is_rate(gradient_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("poseidon_rates: gradient_scale is ", gradient_scale,
                     "; it must be a finite number (as float32), at least 0"));
  }
  poseidon::ProgramRates rates{.ahead = false, .gradient_scale = gradient_scale, .tensors = {}};
  auto next = given.begin();
  for (const poseidon::LayoutLayer& layer : layout.layers) {
    std::vector<poseidon::StepRates>& of_layer = rates.tensors.emplace_back();
    for (const poseidon::LayoutTensor& tensor : layer.tensors) {
      const poseidon_rate& rate = *next++;
      if (!poseidon::is_rate(rate.learning_rate) || !poseidon::is_rate(rate.weight_decay)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "poseidon_rates: ", poseidon::full_tensor_name(layer.name, tensor.name),
            " has learning rate ", rate.learning_rate, " and weight decay ", rate.weight_decay,
            "; they must be finite numbers (as float32), at least 0"));
      }
      of_layer.push_back({.learning_rate = rate.learning_rate, .weight_decay = rate.weight_decay});
    }
  }
  return rates;
}

/// Once per process, at the first client: the log to stderr, and memory that others can read.
void prepare_process(const poseidon::ClientOptions& options) {
  static std::once_flag once;
  std::call_once(once, [&options] {
    (void)poseidon::start_log("client", {.level = options.log, .format = "text"});
    if (!options.shared_memory) return;
    if (const absl::Status shared = poseidon::share_tensor_memory(); !shared.ok()) {
      spdlog::info("sockets instead of shared memory on this machine: {}",
                   std::string(shared.message()));
    }
  });
}

}  // namespace

int poseidon_abi_version(void) { return kAbiVersion; }

const char* poseidon_message(void) { return message_of_thread().c_str(); }

poseidon_result poseidon_create(const char* job, const char* options, poseidon_client** client) {
  return guarded("poseidon_create", [&]() -> poseidon_result {
    if (client == nullptr) return fail_invalid("poseidon_create: client is null");
    *client = nullptr;
    if (job == nullptr || options == nullptr) {
      return fail_invalid("poseidon_create: job and options must not be null");
    }
    auto parsed = poseidon::parse_client_options(options);
    if (!parsed.ok()) return fail_invalid(std::string(parsed.status().message()));
    auto text = poseidon::parse_program_job(job, parsed->workers);
    if (!text.ok()) return fail_invalid(std::string(text.status().message()));
    prepare_process(*parsed);
    *client = std::make_unique<poseidon_client>(*std::move(parsed), *std::move(text)).release();
    return POSEIDON_OK;
  });
}

void poseidon_destroy(poseidon_client* client) {
  // Of a forked process: the threads are the other's, and their locks may be held for ever.
  if (client == nullptr || client->process != ::getpid()) return;
  delete client;
}

poseidon_result poseidon_layer(poseidon_client* client, uint32_t layer, float** parameters,
                               float** gradients, int64_t* elements) {
  return called(client, "poseidon_layer", [&]() -> poseidon_result {
    if (layer >= client->memory.layers()) {
      return fail_invalid(absl::StrCat("poseidon_layer: layer ", layer, " of a model with ",
                                       client->memory.layers(), " layers"));
    }
    if (parameters != nullptr) *parameters = client->memory.parameters(layer).data();
    if (gradients != nullptr) *gradients = client->memory.gradients(layer).data();
    if (elements != nullptr) {
      *elements = static_cast<int64_t>(client->memory.parameters(layer).size());
    }
    return POSEIDON_OK;
  });
}

poseidon_result poseidon_state(poseidon_client* client, float** values, int64_t* elements) {
  return called(client, "poseidon_state", [&]() -> poseidon_result {
    const std::span<float> state = client->memory.state();
    if (values != nullptr) *values = state.empty() ? nullptr : state.data();
    if (elements != nullptr) *elements = static_cast<int64_t>(state.size());
    return POSEIDON_OK;
  });
}

poseidon_result poseidon_join(poseidon_client* client, int64_t* iteration) {
  return called(client, "poseidon_join", [&]() -> poseidon_result {
    if (client->node == nullptr) {
      client->memory.remember_initial();
      const std::span<const float> state = client->memory.state();
      client->parts.initial_state.assign(state.begin(), state.end());
      client->node = std::make_unique<poseidon::ProgramNode>(client->options, client->job_json,
                                                             &client->parts);
      client->node->start();
    }
    const poseidon_result result = give(client->link.join());
    if (result != POSEIDON_OK) return result;
    const std::int64_t rank = client->link.rank();
    if (client->options.rank >= 0 && rank != client->options.rank) {
      const std::string message =
          absl::StrCat("the cluster gave this worker rank ", rank, ", and it must have rank ",
                       client->options.rank, ": it has left");
      client->node.reset();
      return fail(POSEIDON_REFUSED, message);
    }
    if (iteration != nullptr) *iteration = client->link.iteration();
    return POSEIDON_OK;
  });
}

int poseidon_rank(const poseidon_client* client) {
  return client == nullptr ? -1 : static_cast<int>(client->link.rank());
}

int poseidon_world_size(const poseidon_client* client) {
  return client == nullptr ? -1 : static_cast<int>(client->link.workers());
}

int64_t poseidon_iteration(const poseidon_client* client) {
  return client == nullptr ? 0 : client->link.iteration();
}

poseidon_result poseidon_gradient(poseidon_client* client, uint32_t layer) {
  return called(client, "poseidon_gradient", [&] { return give(client->link.gradient(layer)); });
}

poseidon_result poseidon_gradient_norm(poseidon_client* client, double* norm) {
  return called(client, "poseidon_gradient_norm", [&]() -> poseidon_result {
    if (norm == nullptr) return fail_invalid("poseidon_gradient_norm: norm is null");
    return give(client->link.gradient_norm(*norm));
  });
}

poseidon_result poseidon_rates(poseidon_client* client, const poseidon_rate* rates, uint64_t count,
                               double gradient_scale) {
  return called(client, "poseidon_rates", [&]() -> poseidon_result {
    const std::span<const poseidon_rate> given(rates, rates == nullptr ? 0 : count);
    absl::StatusOr<poseidon::ProgramRates> all =
        rates_by_layer(client->memory.layout(), given, gradient_scale);
    if (!all.ok()) return fail_invalid(std::string(all.status().message()));
    return give(client->link.rates(*std::move(all)));
  });
}

poseidon_result poseidon_fail(poseidon_client* client, const char* reason) {
  return called(client, "poseidon_fail", [&]() -> poseidon_result {
    if (reason == nullptr) return fail_invalid("poseidon_fail: reason is null");
    return give(client->link.fail(reason));
  });
}

poseidon_result poseidon_step(poseidon_client* client, double loss) {
  return called(client, "poseidon_step", [&] { return give(client->link.step(loss)); });
}

poseidon_result poseidon_wait(poseidon_client* client, uint32_t layer) {
  return called(client, "poseidon_wait", [&] { return give(client->link.wait(layer)); });
}

poseidon_result poseidon_wait_all(poseidon_client* client) {
  return called(client, "poseidon_wait_all", [&] { return give(client->link.wait_all()); });
}

poseidon_result poseidon_finish(poseidon_client* client) {
  return called(client, "poseidon_finish", [&] { return give(client->link.finish()); });
}
