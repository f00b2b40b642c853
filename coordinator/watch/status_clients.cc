#include "coordinator/watch/status_clients.h"

#include <algorithm>

#include "common/threads/mutex.h"

namespace poseidon {

void StatusClients::on_poll(const std::string& client, bool end_told, Nanoseconds now) {
  forget_silent(now);
  clients_[client] = {.polled = now, .end_told = end_told};
  if (end_told) told_.notify_all();
}

void StatusClients::on_new_job() {
  for (auto& [name, client] : clients_) client.end_told = false;
}

bool StatusClients::all_told() const {
  return std::ranges::all_of(clients_, [](const auto& entry) { return entry.second.end_told; });
}

void StatusClients::wait_until_told(Mutex& mutex, Nanoseconds now) {
  forget_silent(now);
  told_.wait_for(mutex, patience_, [this] { return all_told(); });
}

void StatusClients::forget_silent(Nanoseconds now) {
  std::erase_if(clients_,
                [&](const auto& entry) { return now - entry.second.polled >= patience_; });
}

}  // namespace poseidon
