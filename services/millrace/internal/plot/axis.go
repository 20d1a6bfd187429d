package plot

import (
	"math"
	"strconv"
	"strings"
)

// axis maps numbers from low to high, which is more, onto a length.
type axis struct {
	low, high float64
	ticks     []tick
}

type tick struct {
	at   float64 // low <= at <= high
	text string
}

// newAxis returns an axis for values from low to high, which are finite, with about four ticks that are least or more apart. If
// they are too near each other to be told apart it is wider.
func newAxis(low, high, least float64) axis {
	size := max(math.Abs(low), math.Abs(high))
	if high-low <= size*1e-12 || high-low < 1e-300 {
		pad := size / 10
		if pad < 1e-290 {
			pad = 1
		}
		low, high = low-pad, high+pad
	}
	a := axis{low: low, high: high}
	step, exponent := niceStep(max((high-low)/4, least))
	unit, _ := strconv.ParseFloat("1e"+strconv.Itoa(exponent), 64)
	for i := math.Ceil(low/unit/step) + 0; ; i++ { // + 0: there is no minus 0.
		// Decimal digits, so that 3 times 0.1 is 0.3.
		t := tick{text: strconv.FormatFloat(i*step, 'f', 0, 64) + "e" + strconv.Itoa(exponent)}
		t.at, _ = strconv.ParseFloat(t.text, 64)
		if t.at > high {
			return a
		}
		if t.at >= low {
			t.text = strconv.FormatFloat(t.at, 'g', -1, 64)
			if math.Abs(t.at) >= 1e4 && math.Abs(t.at) < 1e15 {
				t.text = strconv.FormatFloat(t.at, 'f', -1, 64)
			}
			a.ticks = append(a.ticks, t)
		}
	}
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is not below span, which is more than 0.
func niceStep(span float64) (step float64, exponent int) {
	mantissa, power, _ := strings.Cut(strconv.FormatFloat(span, 'e', -1, 64), "e")
	m, _ := strconv.ParseFloat(mantissa, 64)
	exponent, _ = strconv.Atoi(power)
	for _, step := range []float64{1, 2, 5} {
		if m <= step {
			return step, exponent
		}
	}
	return 1, exponent + 1
}

// place returns where v lies on a length. A product is divided before it is added to anything, so that no processor joins the two
// into one operation with another result.
func (a axis) place(v, length float64) float64 { return length * (v - a.low) / (a.high - a.low) }
