package vectorcli

import (
	"encoding/binary"
	"io"
	"math"
)

// memoryRows are rows of 32-bit floats in memory.
type memoryRows struct {
	bytes     []byte
	dimension int
}

func (m *memoryRows) Rows() int64   { return int64(len(m.bytes) / m.RowBytes()) }
func (m *memoryRows) RowBytes() int { return 4 * m.dimension }

// ReadRows reads as many rows as fit into dst, from row first on.
func (m *memoryRows) ReadRows(dst []byte, first int64) (int, error) {
	offset := int(first) * m.RowBytes()
	if offset >= len(m.bytes) {
		return 0, io.EOF
	}
	return copy(dst[:len(dst)/m.RowBytes()*m.RowBytes()], m.bytes[offset:]) / m.RowBytes(), nil
}

// circles returns rows on three circles around 0, of radius 1, 2 and 3, in one plane of the space.
// Row i is on circle i mod 3; the rows of a circle go round it once, evenly.
func circles(rows, dimension int) *memoryRows {
	m := &memoryRows{dimension: dimension}
	scale := math.Sqrt(2 / float64(dimension)) // the plane's two directions have length 1
	for i := range rows {
		radius := float64(i%3 + 1)
		angle := 2 * math.Pi * float64(i/3) / float64((rows+2-i%3)/3)
		for j := range dimension {
			v := radius * scale * math.Cos(angle+2*math.Pi*float64(j)/float64(dimension))
			m.bytes = binary.LittleEndian.AppendUint32(m.bytes, math.Float32bits(float32(v)))
		}
	}
	return m
}
