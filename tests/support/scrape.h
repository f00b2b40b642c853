#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>

#include "common/descriptor.h"
#include "gtest/gtest.h"

namespace poseidon::testing_support {

/// What an HTTP GET of /metrics answers.
inline std::string scrape(const std::string& address) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = recv(socket.get(), part.data(), part.size(), 0)) > 0;) {
    answer.append(part.data(), static_cast<std::size_t>(n));
  }
  return answer;
}

}  // namespace poseidon::testing_support
