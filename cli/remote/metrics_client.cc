#include "cli/remote/metrics_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/text.h"
#include "common/daemon/daemon.h"
#include "common/security/roles.h"

namespace poseidon {
namespace {

/// At a time; the others wait for one to end.
constexpr long kConnections = 16;
/// Of a refusal, so much is told.
constexpr std::size_t kToldBytes = 200;
/// Between two looks at what came, when nothing does.
constexpr int kPollMs = 100;

/// libcurl wants to be told once per process, before other threads use it.
void initialise() {
  static const CURLcode done = curl_global_init(CURL_GLOBAL_DEFAULT);
  POSEIDON_CHECK(done == CURLE_OK, "libcurl has what it needs");
}

struct Answer {
  std::string body;
  bool is_too_large = false;
  std::array<char, CURL_ERROR_SIZE> error{};
};

std::size_t take(char* data, std::size_t size, std::size_t count, void* to) {
  auto* answer = static_cast<Answer*>(to);
  const std::size_t bytes = size * count;
  answer->is_too_large = answer->body.size() + bytes > kMaxMetricsPageBytes;
  if (answer->is_too_large) return 0;  // ends the transfer
  answer->body.append(data, bytes);
  return bytes;
}

/// One request, on its way from when it is made until its end.
class Request {
 public:
  Request(CURLM* all, const std::string& address, const SecurityOptions& security,
          Milliseconds timeout)
      : all_(all), easy_(curl_easy_init()) {
    POSEIDON_CHECK(easy_ != nullptr, "libcurl has memory");
    const std::string scheme = page_scheme(address, !security.tls_dir.empty());
    if (scheme == "https") {
      use_tls(address, security.tls_dir);
    } else {
      set(CURLOPT_URL, absl::StrCat("http://", address, "/metrics").c_str());
    }
    set(CURLOPT_PROTOCOLS_STR, scheme.c_str());
    set(CURLOPT_PROXY, "");  // daemons are near, whatever the environment says
    set(CURLOPT_USERAGENT, "poseidon");
    set(CURLOPT_ACCEPT_ENCODING, "gzip");
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(timeout.count()));
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_QUICK_EXIT, 1L);  // a name that nobody resolves is not waited for
    set(CURLOPT_ERRORBUFFER, answer_.error.data());
    set(CURLOPT_WRITEFUNCTION, &take);
    set(CURLOPT_WRITEDATA, static_cast<void*>(&answer_));
    POSEIDON_CHECK(curl_multi_add_handle(all_, easy_) == CURLM_OK, "it is added once");
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() {
    curl_multi_remove_handle(all_, easy_);
    curl_easy_cleanup(easy_);
    curl_slist_free_all(connect_to_);
  }

  CURL* handle() const { return easy_; }

  absl::StatusOr<std::string> outcome(CURLcode code) {
    if (answer_.is_too_large) {
      return absl::ResourceExhaustedError(
          absl::StrCat("its page is larger than ", kMaxMetricsPageBytes >> 20U, " MiB"));
    }
    if (code == CURLE_OPERATION_TIMEDOUT) {
      return absl::DeadlineExceededError("it did not answer in time");
    }
    if (code != CURLE_OK) {
      return absl::UnavailableError(printable(
          answer_.error.front() != '\0' ? answer_.error.data() : curl_easy_strerror(code)));
    }
    long status = 0;
    curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200) return std::move(answer_.body);
    const std::string said =
        printable(std::string(absl::StripAsciiWhitespace(answer_.body.substr(0, kToldBytes))));
    const std::string words = absl::StrCat("it answers ", status, ": ", said);
    return status == 403 ? absl::PermissionDeniedError(words) : absl::UnavailableError(words);
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    POSEIDON_CHECK(curl_easy_setopt(easy_, option, value) == CURLE_OK, "libcurl knows the option");
  }

  /// Certificates have one name that stands for every daemon, whatever its address.
  void use_tls(const std::string& address, const std::filesystem::path& folder) {
    const std::string port = address.substr(address.rfind(':') + 1);
    set(CURLOPT_URL,
        absl::StrCat("https://", std::string(kDaemonDnsName), ":", port, "/metrics").c_str());
    connect_to_ = curl_slist_append(nullptr, absl::StrCat("::", address).c_str());
    POSEIDON_CHECK(connect_to_ != nullptr, "libcurl has memory");
    set(CURLOPT_CONNECT_TO, connect_to_);
    set(CURLOPT_CAINFO, (folder / "ca.crt").c_str());
    set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));  // not the world's authorities too
    set(CURLOPT_SSLCERT, (folder / "tls.crt").c_str());
    set(CURLOPT_SSLKEY, (folder / "tls.key").c_str());
    set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  }

  CURLM* const all_;
  CURL* const easy_;
  curl_slist* connect_to_ = nullptr;
  Answer answer_;
};

}  // namespace

void fetch_metrics(const std::vector<std::string>& addresses, const SecurityOptions& security,
                   Milliseconds timeout, const OnMetricsPage& on_page) {
  initialise();
  const std::unique_ptr<CURLM, CURLMcode (*)(CURLM*)> all(curl_multi_init(), &curl_multi_cleanup);
  POSEIDON_CHECK(all != nullptr, "libcurl has memory");
  curl_multi_setopt(all.get(), CURLMOPT_MAX_TOTAL_CONNECTIONS, kConnections);
  std::vector<std::unique_ptr<Request>> requests;
  requests.reserve(addresses.size());
  for (const std::string& address : addresses) {
    requests.push_back(std::make_unique<Request>(all.get(), address, security, timeout));
  }
  std::size_t left = requests.size();
  while (left > 0) {
    int running = 0, more = 0;
    POSEIDON_CHECK(curl_multi_perform(all.get(), &running) == CURLM_OK, "each is added once");
    while (const CURLMsg* message = curl_multi_info_read(all.get(), &more)) {
      // Before its request goes, and the message with it.
      const CURLcode code = message->data.result;
      const auto found = std::find_if(requests.begin(), requests.end(), [&](const auto& request) {
        return request != nullptr && request->handle() == message->easy_handle;
      });
      POSEIDON_CHECK(found != requests.end(), "nobody else has a handle there");
      absl::StatusOr<std::string> page = (*found)->outcome(code);
      found->reset();
      --left;
      on_page(static_cast<std::size_t>(found - requests.begin()), std::move(page));
    }
    // Each has a deadline of its own, which perform() keeps.
    if (left > 0) curl_multi_poll(all.get(), nullptr, 0, kPollMs, nullptr);
  }
}

}  // namespace poseidon
