// blake3_lanes: the lane-parallel compression, written once over Vec (kLanes words) with add, exclusive_or, rotate_right,
// broadcast, load, store and load_block; included inside a namespace and a target region that define them.

inline void mix(Vec& a, Vec& b, Vec& c, Vec& d, const Vec& x, const Vec& y) {
  a = add(add(a, b), x);
  d = rotate_right<16>(exclusive_or(d, a));
  c = add(c, d);
  b = rotate_right<12>(exclusive_or(b, c));
  a = add(add(a, b), y);
  d = rotate_right<8>(exclusive_or(d, a));
  c = add(c, d);
  b = rotate_right<7>(exclusive_or(b, c));
}

template <int kRound>
inline void mix_round(Vec (&v)[16], const Vec (&m)[16]) {
  constexpr const uint8_t(&s)[16] = kSchedule[kRound];
  mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
  mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
  mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
  mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
  mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
  mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
  mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
  mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
}

inline void hash_lanes(const Job& job, uint32_t (*value)[8]) {
  alignas(64) uint32_t words[8][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint64_t counter = job.counter + static_cast<uint64_t>(lane) * job.counter_step;
    words[0][lane] = static_cast<uint32_t>(counter);
    words[1][lane] = static_cast<uint32_t>(counter >> 32);
  }
  const Vec counter_low = load(words[0]), counter_high = load(words[1]);
  Vec h[8];
  for (int i = 0; i < 8; ++i) h[i] = broadcast(kIv[i]);
  for (int block = 0; block < job.blocks; ++block) {
    uint32_t flags = job.flags;
    if (block == 0) flags |= job.first;
    if (block == job.blocks - 1) flags |= job.last;
    Vec m[16];
    load_block(job.data + block * 64, job.stride, m);
    Vec v[16] = {h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7],
                 broadcast(kIv[0]), broadcast(kIv[1]), broadcast(kIv[2]), broadcast(kIv[3]),
                 counter_low, counter_high, broadcast(64), broadcast(flags)};
    mix_round<0>(v, m);
    mix_round<1>(v, m);
    mix_round<2>(v, m);
    mix_round<3>(v, m);
    mix_round<4>(v, m);
    mix_round<5>(v, m);
    mix_round<6>(v, m);
    for (int i = 0; i < 8; ++i) h[i] = exclusive_or(v[i], v[i + 8]);
  }
  for (int i = 0; i < 8; ++i) store(words[i], h[i]);
  for (int lane = 0; lane < kLanes; ++lane)
    for (int i = 0; i < 8; ++i) value[lane][i] = words[i][lane];
}
