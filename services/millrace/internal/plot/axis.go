package plot

import (
	"math"
	"strconv"
	"strings"
)

// axis maps numbers from low to high, which is more, onto a length.
type axis struct {
	low, high float64
	log       bool // low is more than 0
	ticks     []tick
}

type tick struct {
	at   float64 // low <= at <= high
	text string
}

// newAxis returns an axis for values from low to high, which are finite, with about five ticks that are least or more apart. If
// they are too close to be distinguished it is wider.
func newAxis(low, high, least float64) axis {
	low, high = apart(low, high)
	a := axis{low: low, high: high}
	step, exponent := niceStep(max((high-low)/5, least))
	for i := math.Ceil(low/unit(exponent)/step) + 0; ; i++ { // + 0 turns minus 0 into 0
		t := tickAt(i*step, exponent)
		if t.at > high {
			return a
		}
		if t.at >= low {
			a.ticks = append(a.ticks, t)
		}
	}
}

// newRoundAxis is newAxis with an axis that begins and ends at a tick: no value lies above the last grid line or below the first.
func newRoundAxis(low, high float64) axis {
	low, high = apart(low, high)
	step, exponent := niceStep((high - low) / 5)
	first, last := math.Floor(low/unit(exponent)/step)+0, math.Ceil(high/unit(exponent)/step)
	a := axis{}
	for i := first; i <= last; i++ {
		a.ticks = append(a.ticks, tickAt(i*step, exponent))
	}
	a.low, a.high = a.ticks[0].at, a.ticks[len(a.ticks)-1].at
	return a
}

// newLogAxis returns a logarithmic axis for values from low to high, both more than 1e-300, that begins and ends at a tick.
func newLogAxis(low, high float64) axis {
	from, to := decade(low), decade(high)+1
	digits, stride := []float64{1, 2, 5}, 1
	if to-from > 2 {
		digits, stride = []float64{1}, (to-from+4)/5
	}
	var all []tick
	for e := from; len(all) == 0 || all[len(all)-1].at < high; e += stride {
		for _, d := range digits {
			all = append(all, tickAt(d, e))
		}
	}
	first, last := 0, len(all)-1
	for first+1 < last && all[first+1].at <= low {
		first++
	}
	for last-1 > first && all[last-1].at >= high {
		last--
	}
	return axis{low: all[first].at, high: all[last].at, log: true, ticks: all[first : last+1]}
}

// apart returns low and high, or a wider range if they are equal or nearly so.
func apart(low, high float64) (wideLow, wideHigh float64) {
	size := max(math.Abs(low), math.Abs(high))
	if high-low > size*1e-12 && high-low >= 1e-300 {
		return low, high
	}
	pad := size / 10
	if pad < 1e-290 {
		pad = 1
	}
	return low - pad, high + pad
}

// tickAt returns the tick at digits times 10^exponent. It goes through decimal digits, so that 3 times 0.1 is 0.3.
func tickAt(digits float64, exponent int) tick {
	t := tick{}
	t.at, _ = strconv.ParseFloat(strconv.FormatFloat(digits, 'f', 0, 64)+"e"+strconv.Itoa(exponent), 64)
	t.text = strconv.FormatFloat(t.at, 'g', -1, 64)
	if math.Abs(t.at) >= 1e4 && math.Abs(t.at) < 1e15 {
		t.text = strconv.FormatFloat(t.at, 'f', -1, 64)
	}
	return t
}

func unit(exponent int) float64 {
	v, _ := strconv.ParseFloat("1e"+strconv.Itoa(exponent), 64)
	return v
}

// decade returns the exponent of v in decimal notation; v is more than 0.
func decade(v float64) int {
	_, exponent := scientific(v)
	return exponent
}

// scientific returns v, which is more than 0, as a mantissa in [1, 10) and an exponent of 10.
func scientific(v float64) (mantissa float64, exponent int) {
	m, power, _ := strings.Cut(strconv.FormatFloat(v, 'e', -1, 64), "e")
	mantissa, _ = strconv.ParseFloat(m, 64)
	exponent, _ = strconv.Atoi(power)
	return mantissa, exponent
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is not below span, which is more than 0.
func niceStep(span float64) (step float64, exponent int) {
	m, exponent := scientific(span)
	for _, step := range []float64{1, 2, 5} {
		if m <= step {
			return step, exponent
		}
	}
	return 1, exponent + 1
}

// place returns where v lies on a length. A product is divided before it is added to anything, so that no processor joins the two
// into one operation with another result. Processors may round a logarithm differently, by 1e-13 of a pixel; px has two digits.
func (a axis) place(v, length float64) float64 {
	if a.log {
		return length * (math.Log(v) - math.Log(a.low)) / (math.Log(a.high) - math.Log(a.low))
	}
	return length * (v - a.low) / (a.high - a.low)
}
