package replay

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/services/bench/internal/load"
)

// ErrFormat is returned for a file that is not a request trace. The message names the line.
var ErrFormat = errors.New("not a request trace")

// Request is one arrival of a trace.
type Request struct {
	Arrival time.Duration // since the first request
	Prompt  int           // tokens, >= 1
	Output  int           // tokens, >= 1
	// Blocks name the pieces of BlockTokens tokens of the prompt; the last one may be shorter.
	// Requests with equal leading blocks begin with the same tokens. Nil if the trace does not have
	// them.
	Blocks []uint64
}

// BlockTokens is the number of tokens of a block.
const BlockTokens = 512

// maxTokens bounds a length. A larger number is a broken line.
const maxTokens = 1 << 24

// maxLine bounds a line of a file, in bytes.
const maxLine = 1 << 20

// lineParser parses a line. It returns false for a line without a request. The arrival is relative
// to any moment that is the same for all lines.
type lineParser func(line string) (r Request, ok bool, err error)

// ReadTrace reads at most limit requests (0: all) and returns them in the order of their arrival. A
// length of 0 becomes 1. The formats are the CSV of Azure's traces and the JSON lines of
// Mooncake's.
func ReadTrace(r io.Reader, limit int) ([]Request, error) {
	buffered := bufio.NewReader(r)
	newParser := azureParser
	switch first, err := buffered.Peek(1); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: the file is empty", ErrFormat)
	case err != nil:
		return nil, err
	case first[0] == '{':
		newParser = mooncakeParser
	}
	lines := bufio.NewScanner(buffered)
	lines.Buffer(nil, maxLine)
	parse := newParser()
	var requests []Request
	for number := 1; lines.Scan() && (limit <= 0 || len(requests) < limit); number++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		request, ok, err := parse(lines.Text())
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
		requests = append(requests, request)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if len(requests) == 0 {
		return nil, fmt.Errorf("%w: it has no requests", ErrFormat)
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.Arrival, b.Arrival) })
	begin := requests[0].Arrival
	for i := range requests {
		requests[i].Arrival -= begin
	}
	return requests, nil
}

var azureColumns = []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// azureLayouts are the spellings of a time, with and without a zone.
var azureLayouts = []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00"}

// azureParser parses CSV. The first line names the columns, in any order.
func azureParser() lineParser {
	var column [3]int // of each name
	first := true
	var begin time.Time
	return func(line string) (Request, bool, error) {
		fields := strings.Split(strings.TrimSuffix(line, "\r"), ",")
		if first {
			first = false
			for i, name := range azureColumns {
				if column[i] = slices.Index(fields, name); column[i] < 0 {
					return Request{}, false, fmt.Errorf("no column %s; want a header %s, or JSON lines", name, strings.Join(azureColumns, ","))
				}
			}
			return Request{}, false, nil
		}
		if len(fields) <= slices.Max(column[:]) {
			return Request{}, false, fmt.Errorf("%d fields, want at least %d", len(fields), slices.Max(column[:])+1)
		}
		arrival, err := azureTime(fields[column[0]])
		if err != nil {
			return Request{}, false, err
		}
		if begin.IsZero() {
			begin = arrival
		}
		prompt, err := strconv.Atoi(fields[column[1]])
		if err != nil {
			return Request{}, false, fmt.Errorf("ContextTokens is %q", fields[column[1]])
		}
		output, err := strconv.Atoi(fields[column[2]])
		if err != nil {
			return Request{}, false, fmt.Errorf("GeneratedTokens is %q", fields[column[2]])
		}
		return Request{Arrival: arrival.Sub(begin), Prompt: prompt, Output: output}, true, nil
	}
}

func azureTime(s string) (time.Time, error) {
	for _, layout := range azureLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("TIMESTAMP is %q, want for example 2023-11-16 18:15:46.6805900", s)
}

// mooncakeParser parses JSON lines with a time, lengths and blocks. It ignores other members.
func mooncakeParser() lineParser {
	return func(line string) (Request, bool, error) {
		var record struct {
			Timestamp *float64 `json:"timestamp"` // ms
			Input     *int     `json:"input_length"`
			Output    *int     `json:"output_length"`
			Blocks    []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			return Request{}, false, err
		}
		if record.Timestamp == nil || record.Input == nil || record.Output == nil {
			return Request{}, false, errors.New("timestamp, input_length or output_length is missing")
		}
		if want := (*record.Input + BlockTokens - 1) / BlockTokens; record.Blocks != nil && len(record.Blocks) != want {
			return Request{}, false, fmt.Errorf("%d hash_ids for input_length %d: want %d, one for each %d tokens", len(record.Blocks),
				*record.Input, want, BlockTokens)
		}
		arrival := time.Duration(*record.Timestamp * float64(time.Millisecond))
		return Request{Arrival: arrival, Prompt: *record.Input, Output: *record.Output, Blocks: record.Blocks}, true, nil
	}
}

// Faster returns the requests with their arrivals speed times as fast; speed > 0.
func Faster(requests []Request, speed float64) []Request {
	out := slices.Clone(requests)
	for i := range out {
		out[i].Arrival = time.Duration(float64(out[i].Arrival) / speed)
	}
	return out
}

// Arrivals returns the requests as arrivals of an open loop, each cut down to limit tokens by
// load.Fit.
func Arrivals(requests []Request, limit int) iter.Seq[load.Arrival] {
	return func(yield func(load.Arrival) bool) {
		for _, r := range requests {
			size := load.Fit(load.Size{Prompt: r.Prompt, Output: r.Output}, limit)
			if !yield(load.Arrival{At: r.Arrival, Size: size}) {
				return
			}
		}
	}
}

// CountCut counts the requests that Arrivals cuts.
func CountCut(requests []Request, limit int) (n int) {
	for _, r := range requests {
		if size := (load.Size{Prompt: r.Prompt, Output: r.Output}); load.Fit(size, limit) != size {
			n++
		}
	}
	return n
}
