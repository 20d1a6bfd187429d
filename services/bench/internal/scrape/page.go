package scrape

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// ErrMeasure says that a page has no such measure.
var ErrMeasure = errors.New("no such measure")

// Timeout bounds one scrape.
const Timeout = 5 * time.Second

// Sum reads a page and adds up every series of a measure, whatever its labels.
func Sum(ctx context.Context, url, measure string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Close = true // looks are rare, and nothing is kept between them
	response, err := (&http.Client{Timeout: Timeout}).Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // only read
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", url, response.Status)
	}
	sum, err := add(response.Body, measure)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", url, err)
	}
	return sum, nil
}

// add adds up the series of a measure: lines NAME VALUE or NAME{LABELS} VALUE, with a time behind it or none.
func add(page io.Reader, measure string) (sum float64, err error) {
	found := false
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), measure)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		if rest[0] == '{' {
			rest = rest[strings.LastIndexByte(rest, '}')+1:]
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0, fmt.Errorf("%q has no value", lines.Text())
		}
		value, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return 0, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		sum, found = sum+value, true
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("%w: %s", ErrMeasure, measure)
	}
	return sum, nil
}
