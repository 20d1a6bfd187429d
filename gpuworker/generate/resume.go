package generate

import (
	"errors"
	"fmt"
)

// Sentinels of what is resumed; match with errors.Is. Both come before anything is computed.
var (
	// ErrResume: no stream of the request could have delivered these tokens, or more were to follow. It comes as a *ResumeError.
	ErrResume = errors.New("cannot be resumed")
	// ErrResumeTooLong: more tokens were given than a continuation of the request may have. It is an ErrResume too.
	ErrResumeTooLong = fmt.Errorf("%w", ErrResume)
	// ErrResumeText: the tokens give another text than was received. It comes as a *TextError.
	ErrResumeText = errors.New("the text received is not that of the tokens")
)

// Resume is what was delivered of one continuation.
type Resume struct {
	OutputIndex int     // in [0, Sequences), of one entry only
	IDs         []int32 // its tokens so far, each in the vocabulary, at most MaxTokens
	Finished    bool    // its end was delivered too: nothing is left to do for it, and its tokens are counted and not looked at
	TextBytes   *uint64 // bytes of text delivered for IDs; nil: not compared
}

// ResumeError says which token of an entry of Request.Resume cannot be.
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

// TextError says how many bytes of text an entry's tokens give, and how many were received.
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

// Unwrap is ErrResumeText.
func (e *TextError) Unwrap() error { return ErrResumeText }

// resume feeds a continuation what was delivered of it, so that what it delivers next is what it would have. Stop conditions
// are looked at as if the tokens were generated: one that the last token meets ends the continuation; one met before it is an
// error, as the stream would have ended there.
func (c *continuation) resume(r Resume, entry int) error {
	c.resumed = r.IDs
	if r.Finished {
		c.count, c.silent = len(r.IDs), true
		return nil
	}
	var bytes uint64
	for i, id := range r.IDs {
		if c.end != nil {
			return &ResumeError{Entry: entry, Token: i, Problem: "is behind the end: " + c.end.String() + " ends the continuation before it"}
		}
		text, err := c.push(id)
		if err != nil {
			return err
		}
		bytes += uint64(len(text))
	}
	if c.end == nil && c.count >= c.limit { // nothing may follow the prompt
		c.end = &ending{length: true}
	}
	if r.TextBytes != nil && *r.TextBytes != bytes {
		return &TextError{OutputIndex: c.index, Tokens: len(r.IDs), Received: *r.TextBytes, Give: bytes}
	}
	return nil
}
