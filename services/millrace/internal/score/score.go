package score

import (
	"errors"
	"fmt"
	"math"
)

// ErrText is a text, or what a server said of it, that cannot be scored.
var ErrText = errors.New("cannot be scored")

// MinWindow is the smallest window with a prediction that counts.
const MinWindow = 3

// Windows cuts tokens into windows of n, each a copy whose first token is bos. A last window shorter than n/2+2 is left
// out; no window left is ErrText, as is n below MinWindow.
func Windows(tokens []uint32, n int, bos uint32) ([][]uint32, error) {
	if n < MinWindow {
		return nil, fmt.Errorf("%w: a window of %d tokens: want at least %d", ErrText, n, MinWindow)
	}
	var all [][]uint32
	for begin := 0; begin < len(tokens); begin += n {
		window := append([]uint32(nil), tokens[begin:min(begin+n, len(tokens))]...)
		if len(window) < n/2+2 {
			break
		}
		window[0] = bos
		all = append(all, window)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the text has %d tokens, a window of %d needs at least %d: give a longer text or a smaller window",
			ErrText, len(tokens), n, n/2+2)
	}
	return all, nil
}

// First is the index of the first token of a window of n whose logprob counts.
func First(n int) int { return n/2 + 1 }

// Sum adds the logprobs that count of one window, cut at n; logprobs[i] belongs to the window's token i and the first
// is not looked at. A value that is not a number is ErrText.
func Sum(logprobs []float32, n int) (sum float64, count int, err error) {
	for i := First(n); i < len(logprobs); i++ {
		v := float64(logprobs[i])
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return 0, 0, fmt.Errorf("%w: the logprob of token %d of a window is %v", ErrText, i, v)
		}
		sum += v
		count++
	}
	return sum, count, nil
}

// Mean is the mean logprob over all windows and its perplexity. No count is ErrText.
func Mean(sums []float64, counts []int) (mean, perplexity float64, tokens int, err error) {
	total := 0.0
	for i, sum := range sums {
		total += sum
		tokens += counts[i]
	}
	if tokens == 0 {
		return 0, 0, 0, fmt.Errorf("%w: no prediction counts", ErrText)
	}
	mean = total / float64(tokens)
	return mean, math.Exp(-mean), tokens, nil
}
