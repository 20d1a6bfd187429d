package ingress

// Lengths, types and flags of HTTP/2 frames (RFC 9113, sections 3.4, 4.1 and 6).
const (
	prefaceBytes = 24
	headBytes    = 9

	typeData, typeHeaders, typeReset, typeContinuation = 0x0, 0x1, 0x3, 0x9
	flagEndStream, flagEndHeaders, flagPadded          = 0x1, 0x4, 0x8
)

// sink receives the content of frames, in order.
type sink interface {
	// bodyData delivers a part of a stream's body.
	bodyData(stream uint32, part []byte)
	// frameEnd follows the last part of each DATA frame.
	frameEnd(stream uint32)
	// streamEnded reports that the client sends no more on a stream.
	streamEnded(stream uint32)
	// headersEnd follows a stream's complete header block. closed reports that no body follows.
	headersEnd(stream uint32, closed bool)
}

// frameParser parses the frames that a client sends, in pieces of any length. It does not validate:
// grpc-go does. The zero value with a sink is ready for a new connection.
type frameParser struct {
	sink          sink
	prefaceLen    int             // bytes of the client preface that have arrived
	head          [headBytes]byte // header of the current frame
	headLen       int             // bytes of head that have arrived
	payloadLeft   int             // payload bytes of the frame that are missing
	bodyLeft      int             // body bytes among them; padding follows
	padLengthNext bool            // the next byte is the length of the padding
	inHeaders     bool            // a header block has begun and not ended
	endStream     bool            // END_STREAM was set on the current header block
	frameCount    int             // frames that have arrived
	stopBetween   bool            // scan stops between frames, so that another can be inserted
}

// scan parses p and returns how many bytes it has parsed: all, or up to the end of a header block,
// or up to the end of a frame if stopBetween is set.
func (f *frameParser) scan(p []byte) int {
	n := min(prefaceBytes-f.prefaceLen, len(p))
	f.prefaceLen += n
	for n < len(p) {
		if f.headLen < headBytes {
			k := copy(f.head[f.headLen:], p[n:])
			f.headLen += k
			n += k
			if f.headLen < headBytes {
				return n
			}
			f.beginFrame()
		}
		k := min(f.payloadLeft, len(p)-n)
		f.payload(p[n : n+k])
		n += k
		f.payloadLeft -= k
		if f.payloadLeft > 0 {
			return n
		}
		f.headLen = 0
		f.frameCount++
		if f.endFrame() || f.stopBetween && f.betweenFrames() {
			return n
		}
	}
	return n
}

// betweenFrames reports whether another frame may be inserted here: not within a frame, nor within
// a header block.
func (f *frameParser) betweenFrames() bool {
	return f.prefaceLen == prefaceBytes && f.headLen == 0 && !f.inHeaders
}

// sawFrame reports whether the client's first frame has arrived, which shows that it speaks HTTP/2.
func (f *frameParser) sawFrame() bool { return f.frameCount > 0 }

func (f *frameParser) kind() byte         { return f.head[3] }
func (f *frameParser) has(flag byte) bool { return f.head[4]&flag != 0 }
func (f *frameParser) stream() uint32 {
	return uint32(f.head[5]&0x7f)<<24 | uint32(f.head[6])<<16 | uint32(f.head[7])<<8 | uint32(f.head[8])
}

// beginFrame starts the frame whose header has arrived.
func (f *frameParser) beginFrame() {
	f.payloadLeft = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
	f.bodyLeft, f.padLengthNext = 0, false
	switch f.kind() {
	case typeData:
		f.bodyLeft, f.padLengthNext = f.payloadLeft, f.has(flagPadded)
	case typeHeaders:
		f.inHeaders = true
	}
}

// payload passes a part of the frame's payload to the sink.
func (f *frameParser) payload(part []byte) {
	if f.padLengthNext && len(part) > 0 {
		f.bodyLeft = max(0, f.payloadLeft-1-int(part[0]))
		f.padLengthNext = false
		part = part[1:]
	}
	if part = part[:min(len(part), f.bodyLeft)]; len(part) > 0 && !f.padLengthNext {
		f.bodyLeft -= len(part)
		f.sink.bodyData(f.stream(), part)
	}
}

// endFrame ends a frame. It reports whether a header block ends with it.
func (f *frameParser) endFrame() bool {
	switch f.kind() {
	case typeData:
		f.sink.frameEnd(f.stream())
		if f.has(flagEndStream) {
			f.sink.streamEnded(f.stream())
		}
	case typeReset:
		f.sink.streamEnded(f.stream())
	case typeHeaders, typeContinuation:
		if f.kind() == typeHeaders {
			f.endStream = f.has(flagEndStream)
		}
		if f.has(flagEndHeaders) {
			f.inHeaders = false
			f.sink.headersEnd(f.stream(), f.endStream)
			return true
		}
	}
	return false
}
