package generate

import (
	"errors"
	"fmt"
)

// Errors of Request.Resume, for errors.Is. They come before anything is computed.
var (
	// ErrResume: no stream of the request could have delivered these tokens and continue. It comes
	// as a *ResumeError.
	ErrResume = errors.New("cannot be resumed")
	// ErrResumeTooLong: more tokens than a continuation of the request may have. It is an ErrResume
	// too.
	ErrResumeTooLong = fmt.Errorf("%w", ErrResume)
	// ErrResumeText: the tokens give another text than was received. It comes as a *TextError.
	ErrResumeText = errors.New("the text received is not that of the tokens")
)

// Resume is the delivered part of one continuation.
type Resume struct {
	OutputIndex int     // in [0, Sequences), unique among the entries
	IDs         []int32 // its tokens so far, each in the vocabulary, at most MaxTokens
	Finished    bool    // its end was delivered too: its tokens are only counted
	TextBytes   *uint64 // bytes of text delivered for IDs; nil: not compared
}

// ResumeError names the token of Request.Resume that is impossible.
type ResumeError struct {
	Entry   int // of Request.Resume
	Token   int // of the entry's IDs
	Problem string
	TooLong bool // whether it is an ErrResumeTooLong
}

// Error implements error.
func (e *ResumeError) Error() string {
	return fmt.Sprintf("%v: resume[%d].token_ids[%d]: %s", ErrResume, e.Entry, e.Token, e.Problem)
}

// Unwrap returns ErrResume or ErrResumeTooLong.
func (e *ResumeError) Unwrap() error {
	if e.TooLong {
		return ErrResumeTooLong
	}
	return ErrResume
}

// TextError states how many bytes of text an entry's tokens give, and how many were received.
type TextError struct {
	OutputIndex    int
	Tokens         int
	Received, Give uint64
}

// Error implements error.
func (e *TextError) Error() string {
	return fmt.Sprintf("%v: text_bytes of output %d is %d, and its %d tokens give %d", ErrResumeText, e.OutputIndex, e.Received,
		e.Tokens, e.Give)
}

// Unwrap returns ErrResumeText.
func (e *TextError) Unwrap() error { return ErrResumeText }

// resume replays the delivered part of a continuation, so that it continues with what it would have
// delivered. Stop conditions apply as if the tokens were generated: one that the last token meets
// ends the continuation; one that an earlier token meets is an error, because the stream would have
// ended there.
func (c *continuation) resume(r Resume, entry int) error {
	c.resumed = r.IDs
	if r.Finished {
		c.count, c.delivered = len(r.IDs), true
		return nil
	}
	var bytes uint64
	for i, id := range r.IDs {
		if c.end != nil {
			return &ResumeError{Entry: entry, Token: i, Problem: "comes after the end: " + c.end.String() + " ends the continuation before it"}
		}
		text, err := c.push(id)
		if err != nil {
			return err
		}
		bytes += uint64(len(text))
		if err := c.follow(id); err != nil {
			return &ResumeError{Entry: entry, Token: i, Problem: "is not a token that guided allows here: " + err.Error()}
		}
	}
	if c.end == nil && c.count >= c.limit { // no token may follow the prompt
		c.end = &ending{length: true}
	}
	if r.TextBytes != nil && *r.TextBytes != bytes {
		return &TextError{OutputIndex: c.index, Tokens: len(r.IDs), Received: *r.TextBytes, Give: bytes}
	}
	return nil
}

// follow advances the grammar by a resumed id. A stop token ends the text and does not continue it.
func (c *continuation) follow(id int32) (err error) {
	if c.guide.Free() || c.end != nil && c.end.token != nil {
		return nil
	}
	c.guide, err = c.guide.Advance(id)
	return err
}
