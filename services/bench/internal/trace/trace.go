package trace

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// ErrFormat says that the file is no trace that this package reads; the message names the line.
var ErrFormat = errors.New("not a request trace")

// Request is one arrival.
type Request struct {
	At     time.Duration // since the first request
	Prompt int           // tokens, >= 1
	Output int           // tokens, >= 1
	// Blocks name the prompt's pieces of BlockTokens tokens, the last one perhaps shorter; requests whose lead blocks are equal
	// begin with the same tokens. Nil where the trace does not say.
	Blocks []uint64
}

// BlockTokens is the number of tokens of a block.
const BlockTokens = 512

// maxTokens bounds a length: what is longer is a broken line, not a request.
const maxTokens = 1 << 24

// maxLine bounds a line of a file, in bytes.
const maxLine = 1 << 20

// Read reads at most limit requests (0 is all) in order of arrival. A request without prompt or output counts one token.
func Read(r io.Reader, limit int) ([]Request, error) {
	buffered := bufio.NewReader(r)
	parse := newAzure
	switch first, err := buffered.Peek(1); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: the file is empty", ErrFormat)
	case err != nil:
		return nil, err
	case first[0] == '{':
		parse = newMooncake
	}
	lines := bufio.NewScanner(buffered)
	lines.Buffer(nil, maxLine)
	next := parse()
	type arrival struct {
		at time.Duration
		Request
	}
	var all []arrival
	for number := 1; lines.Scan() && (limit <= 0 || len(all) < limit); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		request, ok, err := next(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, number, err)
		}
		if !ok {
			continue
		}
		if request.Prompt < 0 || request.Output < 0 || request.Prompt > maxTokens || request.Output > maxTokens {
			return nil, fmt.Errorf("%w: line %d: %d prompt and %d output tokens, want 0 to %d", ErrFormat, number,
				request.Prompt, request.Output, maxTokens)
		}
		request.Prompt, request.Output = max(request.Prompt, 1), max(request.Output, 1)
		all = append(all, arrival{request.At, request})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: it has no requests", ErrFormat)
	}
	slices.SortStableFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	requests := make([]Request, len(all))
	for i, a := range all {
		requests[i] = a.Request
		requests[i].At = a.at - all[0].at
	}
	return requests, nil
}

// Faster returns the requests with their arrivals speed times as fast; speed > 0.
func Faster(requests []Request, speed float64) []Request {
	out := slices.Clone(requests)
	for i := range out {
		out[i].At = time.Duration(float64(out[i].At) / speed)
	}
	return out
}

// parser gives the request of a line; ok is false for a line without one. At is since any fixed moment.
type parser func(line string) (r Request, ok bool, err error)
