#include "position.h"

#include <ATen/core/DistributionsHelper.h>

#include <algorithm>

namespace neuron_lab {
namespace {

// The offset's 64 bits. PyTorch adds one unit per element of a sharded tensor;
// a unit is two words, since no element takes more, so that shards never share one.
//   0..44  units   45  one word more   46..62  1 + age in words of the normal number owed, 0: none is
constexpr int kOddBit = 45;
constexpr int kAgeBit = 46;
constexpr uint64_t kMaxAge = (uint64_t{1} << 17) - 2;
constexpr uint64_t kPairWords = 4; // a pair of normal numbers is made of two random doubles
constexpr size_t kMaxKnown = 512; // 2.5 KB each
constexpr uint64_t kMaxWords = uint64_t{1} << 37; // going there takes minutes

uint64_t pack(uint64_t words, std::optional<uint64_t> age) {
  return (words >> 1) | ((words & 1) << kOddBit) | ((age.has_value() ? *age + 1 : 0) << kAgeBit);
}

uint64_t words_of(uint64_t offset) {
  return ((offset & ((uint64_t{1} << kOddBit) - 1)) << 1) | ((offset >> kOddBit) & 1);
}

void skip(at::mt19937& engine, uint64_t words) {
  for (uint64_t i = 0; i < words; ++i) {
    engine();
  }
}

// The second number of the pair that the engine's next words make.
double second_of_pair(const at::mt19937& engine) {
  at::CPUGeneratorImpl probe;
  probe.set_engine(engine);
  at::normal_distribution<double> normal(0.0, 1.0);
  normal(&probe);
  return probe.next_double_normal_sample().value();
}

// Words from one engine to another that went on from it.
uint64_t count(at::mt19937 from, const at::mt19937& to) {
  const auto goal = to.data();
  uint64_t words = 0;
  while (true) {
    const auto here = from.data();
    if (here.state_ == goal.state_) {
      return words + (goal.next_ - here.next_);
    }
    const auto to_the_next_block = static_cast<uint64_t>(here.left_);
    skip(from, to_the_next_block);
    words += to_the_next_block;
  }
}

} // namespace

PositionTracker::PositionTracker(at::CPUGeneratorImpl& host) : last_{host.engine(), 0, std::nullopt} {}

void PositionTracker::restart(at::CPUGeneratorImpl& host) {
  last_ = {host.engine(), 0, std::nullopt};
}

void PositionTracker::remember(Place place) {
  const bool new_place = known_.empty() || known_.back().words != place.words ||
      known_.back().engine.seed() != place.engine.seed();
  if (new_place) {
    known_.push_back(place);
    if (known_.size() > kMaxKnown) {
      known_.pop_front();
    }
  }
  last_ = std::move(place);
}

std::optional<PositionTracker::Owed> PositionTracker::find_owed(const Place& from, uint64_t words, double value) const {
  if (from.owed.has_value() && from.owed->value == value) {
    return from.owed;
  }
  const auto reach = kMaxAge + kPairWords;
  const auto start = std::max(from.words, words > reach ? words - reach : 0);
  auto engine = from.engine;
  skip(engine, start - from.words);
  for (auto end = start + kPairWords; end <= words; ++end, engine()) {
    if (second_of_pair(engine) == value) {
      return Owed{value, end};
    }
  }
  return std::nullopt;
}

Position PositionTracker::position(at::CPUGeneratorImpl& host) {
  Place here{host.engine(), 0, std::nullopt};
  here.words = last_.words + count(last_.engine, here.engine);
  if (const auto value = host.next_double_normal_sample()) {
    here.owed = find_owed(last_, here.words, *value);
    if (here.owed.has_value() && here.words - here.owed->drawn_at > kMaxAge) {
      here.owed.reset();
    }
    if (!here.owed.has_value()) {
      host.set_next_double_normal_sample(std::nullopt); // too long ago to be said: what follows is what the state gives
    }
  }
  const auto words = here.words;
  const auto age = here.owed.has_value() ? std::optional<uint64_t>(words - here.owed->drawn_at) : std::nullopt;
  remember(std::move(here));
  return {host.current_seed(), pack(words, age)};
}

void PositionTracker::move(at::CPUGeneratorImpl& host, Position to) {
  const auto words = words_of(to.offset);
  const auto age = to.offset >> kAgeBit; // plus one
  const auto drawn_at = words + 1 - age;
  TORCH_CHECK(
      (to.offset >> 63) == 0 && (age == 0 || age - 1 + kPairWords <= words),
      "This is no state of a neuron generator: its offset is ", to.offset,
      ", which no generator gave. Set what get_state() returned, or use manual_seed.");
  TORCH_CHECK(
      words <= kMaxWords, "The emulated neuron generator goes to an offset by drawing up to it, and ", words / 2,
      " is too far. Set what get_state() returned, or use manual_seed.");
  const auto target = age == 0 ? words : drawn_at - kPairWords;
  const Place* nearest = nullptr;
  const auto consider = [&](const Place& known) {
    if (known.words <= target && (nearest == nullptr || known.words > nearest->words) && known.engine.seed() == to.seed) {
      nearest = &known;
    }
  };
  consider(last_);
  std::for_each(known_.begin(), known_.end(), consider);
  auto place = nearest != nullptr ? *nearest : Place{at::mt19937(to.seed), 0, std::nullopt};
  skip(place.engine, target - place.words);
  place.owed.reset();
  if (age != 0) {
    place.owed = Owed{second_of_pair(place.engine), drawn_at};
    skip(place.engine, words - target);
  }
  place.words = words;
  host.set_engine(place.engine);
  host.set_next_float_normal_sample(std::nullopt);
  host.set_next_double_normal_sample(place.owed.has_value() ? std::optional<double>(place.owed->value) : std::nullopt);
  remember(std::move(place));
}

} // namespace neuron_lab
