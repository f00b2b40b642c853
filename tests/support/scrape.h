#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/descriptor.h"
#include "gtest/gtest.h"

namespace poseidon::testing_support {

/// A socket to that port of this machine; waits for 10 s at most.
inline Descriptor connected_to(const std::string& address, const char* host = "127.0.0.1") {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  inet_pton(AF_INET, host, &to.sin_addr);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return socket;
}

/// Sends these bytes; everything that comes back until the server hangs up.
inline std::string answer_to(const std::string& address, const std::string& request) {
  const Descriptor socket = connected_to(address);
  // A server may hang up before it has read all of a request that is too long.
  (void)send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = recv(socket.get(), part.data(), part.size(), 0)) > 0;) {
    answer.append(part.data(), static_cast<std::size_t>(n));
  }
  return answer;
}

/// Clients of a server with `limits` that say nothing, or half a request, on all of its threads.
template <typename Limits>
std::vector<Descriptor> silent_clients(const std::string& address, const Limits& limits) {
  std::vector<Descriptor> clients;
  for (unsigned i = 0; i < limits.threads; ++i) {
    clients.push_back(connected_to(address));
    clients.push_back(connected_to(address));
    (void)send(clients.back().get(), "GET /", 5, MSG_NOSIGNAL);
  }
  return clients;
}

/// What an HTTP GET of /metrics answers.
inline std::string scrape(const std::string& address) {
  return answer_to(address, "GET /metrics HTTP/1.0\r\n\r\n");
}

}  // namespace poseidon::testing_support
