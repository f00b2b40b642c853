#pragma once

// Helpers with which seeds.cc and seeds_of_steps.cc write seeds.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace poseidon::fuzz {

/// Of a seed: as much as run.sh lets an input have.
inline constexpr std::size_t kMaxSeedBytes = 8192;

class Seeds {
 public:
  explicit Seeds(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void add(const std::string& target, const std::string& name, const std::string& bytes) {
    if (bytes.size() > kMaxSeedBytes) {
      std::fprintf(stderr, "left out: %s/%s, of %zu bytes\n", target.c_str(), name.c_str(),
                   bytes.size());
      return;
    }
    std::filesystem::create_directories(folder_ / target);
    std::ofstream file(folder_ / target / name, std::ios::binary);
    file << bytes;
    POSEIDON_CHECK(file.good(), "a seed is written");
  }

 private:
  const std::filesystem::path folder_;
};

inline std::string choosing(int what) { return std::string(1, static_cast<char>(what)); }

inline std::string bytes_of(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

/// Of the targets whose inputs are steps, in seeds_of_steps.cc.
void add_streams(Seeds& seeds);
void add_tls_frames(Seeds& seeds);
void add_cluster(Seeds& seeds);

}  // namespace poseidon::fuzz
