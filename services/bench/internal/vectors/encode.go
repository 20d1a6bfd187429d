package vectors

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/gpuworker/engine"
	"github.com/millrace/millrace/gpuworker/engine/reference/vq"
)

// checkedProducts bounds rows * codewords of the check by float64, and mostChecked its rows.
const checkedProducts, mostChecked = 1 << 20, 64

// encode measures a codebook on rows in the caller's memory, as the call Encode uses it.
func (r *run) encode(j *job, line *Line) (_ string, err error) {
	rows := j.data(r.cfg.Seed)
	codewords := codewordsOf(j.desc, r.cfg.Seed)
	book, err := r.vec.NewCodebook(j.desc, codewords)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	var codes engine.Codes
	err = r.paired(line, j.assign(), func() (time.Duration, error) {
		begin := time.Now()
		codes, err = book.Encode(engine.Encoding{Element: j.element, Rows: rows, Neighbours: 1})
		return time.Since(begin), err
	})
	if err != nil {
		return "", err
	}
	line.Recomputed = float64(codes.Recomputed) / float64(j.rows*j.desc.Subspaces)
	if err := checkCodes(j, codewords, rows, codes.Codes); err != nil || r.served == nil {
		return "", err
	}
	line.Served, err = r.servedEncode(j, line, codewords, rows, codes.Codes)
	return "", err
}

// data returns the rows of a job.
func (j *job) data(seed uint64) []byte {
	return Data{Rows: j.rows, Dimension: j.desc.Dimension, Seed: seed}.Bytes(j.element)
}

// checkCodes compares the codes of sampled rows with brute force in float64.
func checkCodes(j *job, codewords, rows, codes []byte) error {
	reference, err := vq.NewCodebook(j.desc, codewords)
	if err != nil {
		return err
	}
	row, code := j.desc.Dimension*j.element.Size(), j.desc.Subspaces*j.desc.CodeSize()
	for _, i := range sampled(j.rows, min(max(checkedProducts/j.desc.Codewords, 1), mostChecked)) {
		want, err := reference.Encode(engine.Encoding{Element: j.element, Rows: rows[i*row : (i+1)*row], Neighbours: 1})
		if err != nil {
			return err
		}
		if got := codes[i*code : (i+1)*code]; !bytes.Equal(got, want.Codes) {
			return fmt.Errorf("%w: row %d has the codes %x, float64 gives %x", ErrWrong, i, got, want.Codes)
		}
	}
	return nil
}
