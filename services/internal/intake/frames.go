package intake

// What is known of HTTP/2's frames (RFC 9113, sections 3.4, 4.1 and 6).
const (
	prefaceBytes = 24
	headBytes    = 9

	typeData, typeHeaders, typeReset, typeContinuation = 0x0, 0x1, 0x3, 0x9
	flagEndStream, flagEndHeaders, flagPadded          = 0x1, 0x4, 0x8
)

// sink is told what frames bring, in order.
type sink interface {
	// data: part of a stream's body.
	data(stream uint32, part []byte)
	// frame: a frame of a stream's body has ended.
	frame(stream uint32)
	// ended: its sender sends no more of it.
	ended(stream uint32)
	// opened: the headers of a stream have come whole; closed is whether nothing follows them.
	opened(stream uint32, closed bool)
}

// frames follows the frames that a client sends, in whatever pieces they come. Bytes that are no frames it takes for some: who reads
// them finds out. Its zero value with a sink is at the beginning of a connection.
type frames struct {
	to      sink
	preface int             // bytes of it that have come
	head    [headBytes]byte // of the frame
	have    int             // bytes of head that have come
	left    int             // bytes of the payload that are to come
	body    int             // of them: bytes of a stream's body; behind them is padding
	padded  bool            // the length of the padding comes first
	block   bool            // a block of headers has begun and not ended
	closed  bool            // nothing follows the block of headers that comes
	whole   int             // frames that have come
	pause   bool            // scan stops where something can be put between two frames
}

// scan follows p and returns how much of it: all, or what is up to the end of a block of headers, or, if pause is set, of a frame.
func (f *frames) scan(p []byte) int {
	n := min(prefaceBytes-f.preface, len(p))
	f.preface += n
	for n < len(p) {
		if f.have < headBytes {
			k := copy(f.head[f.have:], p[n:])
			f.have += k
			n += k
			if f.have < headBytes {
				return n
			}
			f.begin()
		}
		k := min(f.left, len(p)-n)
		f.payload(p[n : n+k])
		n += k
		f.left -= k
		if f.left > 0 {
			return n
		}
		f.have = 0
		f.whole++
		if f.end() || f.pause && f.between() {
			return n
		}
	}
	return n
}

// between reports whether what has come ends where another frame may stand: not in a frame, nor in a block of headers.
func (f *frames) between() bool { return f.preface == prefaceBytes && f.have == 0 && !f.block }

// settled is whether the client has shown that it speaks HTTP/2: its first frame has come.
func (f *frames) settled() bool { return f.whole > 0 }

func (f *frames) kind() byte         { return f.head[3] }
func (f *frames) has(flag byte) bool { return f.head[4]&flag != 0 }
func (f *frames) stream() uint32 {
	return uint32(f.head[5]&0x7f)<<24 | uint32(f.head[6])<<16 | uint32(f.head[7])<<8 | uint32(f.head[8])
}

// begin: the head of a frame has come.
func (f *frames) begin() {
	f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	f.body, f.padded = 0, false
	switch f.kind() {
	case typeData:
		f.body, f.padded = f.left, f.has(flagPadded)
	case typeHeaders:
		f.block = true
	}
}

// payload: a part of the frame's payload has come.
func (f *frames) payload(part []byte) {
	if f.padded && len(part) > 0 {
		f.body = max(0, f.left-1-int(part[0]))
		f.padded = false
		part = part[1:]
	}
	if part = part[:min(len(part), f.body)]; len(part) > 0 && !f.padded {
		f.body -= len(part)
		f.to.data(f.stream(), part)
	}
}

// end: the frame has come whole. It reports whether a block of headers has.
func (f *frames) end() bool {
	switch f.kind() {
	case typeData:
		f.to.frame(f.stream())
		if f.has(flagEndStream) {
			f.to.ended(f.stream())
		}
	case typeReset:
		f.to.ended(f.stream())
	case typeHeaders, typeContinuation:
		if f.kind() == typeHeaders {
			f.closed = f.has(flagEndStream)
		}
		if f.has(flagEndHeaders) {
			f.block = false
			f.to.opened(f.stream(), f.closed)
			return true
		}
	}
	return false
}
