// Package oaipmh reads and writes the Open Archives Initiative Protocol for Metadata
// Harvesting 2.0 (OAI-PMH, 2002, document version 2015). Clauses in comments, such as
// (3.5), are those of that specification; O1 to O14 are the rules by which we harvest.
//
// # Harvesting
//
// A repository lists its records, or those that have changed since a datestamp, in a
// number of answers, each with a resumptionToken for the next one. A [Walk] asks for all
// of them:
//
//	walk := oaipmh.Walk{URL: "https://example.org/oai", Prefix: "oai_dc", State: state}
//	for doc, err := range walk.Documents(ctx) {
//		if err != nil {
//			return err
//		}
//		var records []*oaipmh.Record
//		for rec, bad := range doc.Entries() {
//			if bad != nil {
//				continue // rec is nil; bad says why this one cannot be taken
//			}
//			records = append(records, rec)
//		}
//		if doc.Whole() {
//			at, _ := doc.State()
//			store(records, at)
//		}
//	}
//	state = walk.Result().State // to be stored
//
// A list has its records in any order, and may have one of them again: the one with the
// later Datestamp counts, and of those with the same the one that came later. Keep
// [Result].State, and the next Walk asks for what has changed since. It asks from a little
// before, so some records come again; applying them again gives the same result. Keep
// [Document.State] after each document, and an interrupted walk continues from there.
//
// Where a list breaks off, since its token has expired or an answer is no XML, the walk
// asks again, and then for parts of the list. If parts cannot be read at all, it reads
// all else and then ends with an [IncompleteError]. [Result].Whole reports that nothing
// is missing. Where a repository does not keep deleted records (Identity.Deleted), only
// absence shows a deletion: the record is absent from a walk that was Whole and Full,
// best one of ListIdentifiers.
//
// # Reading one answer
//
// [NewReader] reads an answer, record by record, in memory that does not grow with it.
// A Reader takes what it can: a place where an answer breaks a rule is reported as a
// [Problem], a record that cannot be taken is a [RecordError], and only a
// [DocumentError] ends the reading. [Rules] lists the rules. A [Client] makes single
// requests.
//
// The package stores nothing, and makes requests only with the *http.Client that it is
// given.
package oaipmh
