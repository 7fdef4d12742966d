// Where a core's generator stands: its seed, and how far into the seed's sequence of words it has drawn.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <deque>
#include <optional>

namespace neuron_lab {

// What PyTorch takes the state of an accelerator's generator for, 16 bytes: its
// sharded random operators read them, add to the offset and set them again.
struct Position {
  uint64_t seed;
  uint64_t offset;
};

// Counts along behind a CPU generator (mt19937), which does not count itself:
// what it has drawn is found by going on from a place that is known. To go to a
// place means to draw from the nearest known one before it. Kernels may draw
// from the generator in the meantime; nothing else may set it.
class PositionTracker {
 public:
  explicit PositionTracker(at::CPUGeneratorImpl& host);

  Position position(at::CPUGeneratorImpl& host);
  void move(at::CPUGeneratorImpl& host, Position to);
  void restart(at::CPUGeneratorImpl& host); // after the generator was seeded

 private:
  // A normal number that the generator drew as one of a pair and still owes.
  struct Owed {
    double value;
    uint64_t drawn_at; // words up to the end of its pair
  };
  struct Place {
    at::mt19937 engine;
    uint64_t words;
    std::optional<Owed> owed;
  };
  void remember(Place place);
  std::optional<Owed> find_owed(const Place& from, uint64_t words, double value) const;

  Place last_;
  std::deque<Place> known_; // of all seeds, latest at the end
};

} // namespace neuron_lab
