package harvest

type feedCase struct {
	file string
	want []string
}

// feedTable says of every legacy feed in testdata/feeds what it is harvested to.
// The first line is the feed: title, id, updated. An item is its identifier,
// title, Modified, representations, enclosures and via.
func feedTable() []feedCase {
	return []feedCase{
		{"ampersands.xml", []string{
			"feed | Fish & Chips & more |  | ",
			"a&b | D&D, R&D &copy=2; & so on |  | http://amp.example/?a=1&b=2&c=3&copy=4",
			"reported feed-xml 1",
		}},
		{"atom-03.xml", []string{
			"feed | Old weblog | tag:old.example,2004:1 | 2004-06-02T10:00:00Z",
			"tag:old.example,2004:1.2 | Ships & boats | 2004-06-02T10:00:00Z | text/html http://old.example/ships",
			"tag:old.example,2004:1.1 | Only created | 2004-05-30T00:00:00Z | text/html http://old.example/created",
		}},
		{"atom-10-prefixed.atom", []string{
			"feed | Prefixed | urn:prefixed | 2024-01-01T00:00:00Z",
			"urn:prefixed:1 | One | 2024-01-01T00:00:00Z | https://prefixed.example/1",
		}},
		{"atom-10.atom", []string{
			"feed | Ordinary blog | urn:uuid:5e0c1f1e-0000-4000-8000-000000000001 | 2024-11-05T12:00:00.25Z",
			"urn:uuid:5e0c1f1e-0000-4000-8000-000000000002 | The long pier & after | 2024-11-05T12:00:00.123456789Z | text/html https://blog.example/pier | application/pdf 50000 https://blog.example/pier.pdf | enclosure audio/ogg 700 https://blog.example/pier.ogg",
			"urn:uuid:5e0c1f1e-0000-4000-8000-000000000003 | A bold claim | 2024-10-01T10:00:00Z | http://feeds.example/claim | via https://origin.example/claim",
			"urn:uuid:5e0c1f1e-0000-4000-8000-000000000004 | Plain <text> & more | 2024-09-01T12:00:00Z | application/pdf https://blog.example/out-of-line.pdf",
		}},
		{"atom-base.atom", []string{
			"feed | Bases | urn:base | ",
			"urn:base:1 | Nested |  | http://base.example/feeds/2013/08/post",
			"urn:base:2 | Beside the file |  | http://base.example/feeds/post",
			"urn:base:3 | On the link itself |  | http://other.example/z",
			"urn:base:4 | Only a query |  | http://base.example/feeds/feed.xml?p=4",
			"urn:base:5 | Another host |  | http://cdn.example/5",
		}},
		{"atom-complete.atom", []string{
			"feed | Complete | urn:complete | ",
			"urn:complete:1 | Only one | 2024-01-03T00:00:00Z | https://complete.example/1",
			"reported feed-kind 1",
		}},
		{"atom-ids.atom", []string{
			"feed | Identifiers | a feed | ",
			"a b | Space |  | https://ids.example/base/1",
			"a# | Empty fragment |  | https://ids.example/base/2",
			"http://ids.example/%7Eme/%c3%a9 | Percent |  | https://ids.example/base/3",
			"HTTP://IDS.example/./a/../b | Upper case |  | https://ids.example/base/4",
			"\n  urn:padded\n | White space |  | https://ids.example/base/5",
			"http://ids.example/?a=1&b=2 | CDATA |  | https://ids.example/base/6",
			"http://ids.example/é | Letters |  | https://ids.example/base/7",
			"reported feed-id 1",
		}},
		{"atom-no-namespace.atom", []string{
			"feed | No namespace | urn:none | ",
			"urn:none:1 | One | 2024-01-01T00:00:00Z | https://none.example/1",
			"reported feed-namespace 1",
		}},
		{"atom-pmh.atom", []string{
			"feed | Archived | urn:pmh | 2024-01-03T00:00:00Z",
			"urn:pmh:1 | Alive | 2024-01-03T00:00:00Z | application/xml https://pmh.example/1.xml",
			"deleted | urn:pmh:3 | 2024-01-01T00:00:00Z",
			"urn:pmh:4 | Back again | 2024-01-03T00:00:00Z | https://pmh.example/4",
			"deleted | urn:pmh:5 | ",
			"quarantined | feed-link | urn:pmh:2 | the item has neither a link nor an enclosure that could be taken",
			"quarantined | feed-id |  | the deleted-entry does not say what was deleted: its ref is missing",
			"reported feed-deleted 3",
			"reported feed-date 1",
			"reported feed-kind 1",
		}},
		{"atom-wrong-namespace.atom", []string{
			"feed | Nearly Atom | urn:near | ",
			"urn:near:1 | One | 2024-01-01T00:00:00Z | https://near.example/1",
			"reported feed-namespace 1",
		}},
		{"bom-then-space.xml", []string{
			"feed | Mark |  | ",
			"http://bom.example/2 | Märk |  | http://bom.example/2",
			"reported feed-xml 1",
		}},
		{"bom-utf-8.xml", []string{
			"feed | Mark |  | ",
			"http://bom.example/1 | Märk |  | http://bom.example/1",
		}},
		{"charset-lie-shift-jis.xml", []string{
			"refused | 1:1: bytes that are not shift_jis",
		}},
		{"charset-lie-us-ascii.xml", []string{
			"feed | Café |  | ",
			"résumé | Résumé – naïve |  | http://ascii.example/ré",
			"reported feed-charset 1",
		}},
		{"charset-lie-utf-16.xml", []string{
			"feed | Lie |  | ",
			"http://lie.example/2 | Café |  | http://lie.example/2",
		}},
		{"charset-lie-utf-8.xml", []string{
			"feed | Lie |  | ",
			"http://lie.example/1 | Café “quoted €” |  | http://lie.example/1",
			"reported feed-charset 1",
		}},
		{"charset-unknown.xml", []string{
			`refused | 1:1: unknown charset "x-harbour"; want UTF-8, UTF-16 or one of the WHATWG Encoding Standard`,
		}},
		{"control-characters.xml", []string{
			"feed | Controls |  | ",
			"http://control.example/1 | Page one of many |  | http://control.example/1",
			"reported feed-xml 1",
		}},
		{"dates.xml", []string{
			"feed | Dates |  | ",
			"http://dates.example/0 | Tue, 07 Jan 2025 09:05:03 GMT | 2025-01-07T09:05:03Z | http://dates.example/0",
			"http://dates.example/1 | 7 Jan 2025 09:05:03 +0530 | 2025-01-07T03:35:03Z | http://dates.example/1",
			"http://dates.example/2 | Tue, 07 Jan 2025 09:05:03 EDT | 2025-01-07T13:05:03Z | http://dates.example/2",
			"http://dates.example/3 | Tue, 07 Jan 2025 09:05:03 AEST |  | http://dates.example/3",
			"http://dates.example/4 | 2025-01-07T09:05:03.5+01:00 | 2025-01-07T08:05:03.5Z | http://dates.example/4",
			"http://dates.example/5 | 2025-01-07 | 2025-01-07T00:00:00Z | http://dates.example/5",
			"http://dates.example/6 | 07.01.2025 09:05 | 2025-01-07T09:05:00Z | http://dates.example/6",
			"http://dates.example/7 | 07/01/2025 |  | http://dates.example/7",
			"http://dates.example/8 | 25/12/2024 | 2024-12-25T00:00:00Z | http://dates.example/8",
			"http://dates.example/9 | Tuesday, January 7, 2025 | 2025-01-07T00:00:00Z | http://dates.example/9",
			"http://dates.example/10 | Tue, 7 Jan 25 09:05:03 PST | 2025-01-07T17:05:03Z | http://dates.example/10",
			"http://dates.example/11 | Tue Jan 7 09:05:03 2025 | 2025-01-07T09:05:03Z | http://dates.example/11",
			"http://dates.example/12 | yesterday |  | http://dates.example/12",
			"http://dates.example/13 | 0001-01-01T00:00:00Z |  | http://dates.example/13",
			"http://dates.example/14 | Tue, 32 Jan 2025 09:05:03 GMT |  | http://dates.example/14",
			"http://dates.example/15 | 1/7/2025 3:04:05 PM |  | http://dates.example/15",
			"http://dates.example/16 | Tue, 07 Jan 2025 09:05:03 Z | 2025-01-07T09:05:03Z | http://dates.example/16",
			"http://dates.example/17 | none |  | http://dates.example/17",
			"http://dates.example/both | both | 2025-01-08T00:00:00Z | http://dates.example/both",
			"http://dates.example/better | the better of two | 2025-01-07T09:05:03Z | http://dates.example/better",
			"reported feed-date 7",
		}},
		{"empty.xml", []string{
			"refused | 1:1: the document is empty; want a feed",
		}},
		{"guids.xml", []string{
			"feed | Identity |  | ",
			"http://guid.example/p/1 | Permalink without link |  | http://guid.example/p/1",
			"padded guid | Padded |  | http://guid.example/3",
			"http://guid.example/4 | Empty guid |  | http://guid.example/4",
			"five | Default permalink that is no URL |  | application/pdf 0 http://guid.example/5.pdf",
			"twice | Twice |  | http://guid.example/6",
			"http://guid.example/p/8 | Upper-case FALSE |  | http://guid.example/8",
			"quarantined | feed-link | http://guid.example/p/2 | the item has neither a link nor an enclosure that could be taken",
			"quarantined | feed-id |  | the item has no guid, id or link that could identify it",
			"reported feed-id 1",
		}},
		{"html-entities.xml", []string{
			"feed | Café |  | ",
			"http://entity.example/1 | Un café … &bogus; — � |  | http://entity.example/1",
			"reported feed-xml 3",
		}},
		{"json-10.json", []string{
			"feed | Notes | https://notes.example/feed.json | ",
			"2 |  | 2020-01-02T15:00:00Z | https://notes.example/2",
			"12345678901234567890 | A long number |  | https://notes.example/long",
			"1.50 | A fraction |  | https://notes.example/fraction",
			"true | Neither |  | https://notes.example/true",
		}},
		{"json-11.json", []string{
			"feed | Podcast & more | https://pod.example/feed.json | ",
			"https://pod.example/3 | A <b>title</b> is plain text | 2024-03-04T00:00:00.5Z | https://pod.example/3",
			"two | With sound |  | http://feeds.example/2 | enclosure audio/x-m4a 89970236 https://pod.example/2.m4a",
			"one | Linked |  | https://elsewhere.example/page",
			"zero | Only a file |  | audio/x-m4a 12 https://pod.example/0.m4a",
			"https://pod.example/none | No id |  | https://pod.example/none",
			"quarantined | feed-link | text | the item has neither a link nor an enclosure that could be taken",
			"quarantined | feed-id |  | the item's id holds half of a character (a lone surrogate)",
			`quarantined | feed-item | wrong | its "url" is a number; want a string`,
			"quarantined | feed-id |  | the item is no object",
			"reported feed-date 1",
		}},
		{"json-array.json", []string{
			"refused | 1:2: JSON, but not a JSON Feed: want an object",
		}},
		{"json-broken.json", []string{
			"refused | 2:59: broken JSON: expected comma after array element",
		}},
		{"json-expired.json", []string{
			"feed | Over |  | ",
			"last | The last one |  | https://over.example/last",
		}},
		{"json-not-utf-8.json", []string{
			"refused | 1:1: JSON that is not in UTF-8 (RFC 8259 8.1)",
		}},
		{"json-other.json", []string{
			"refused | 1:1: JSON, but not a JSON Feed: it has no array items",
		}},
		{"json-truncated.json", []string{
			"refused | 1:135: the document is cut off",
		}},
		{"leading-white-space.xml", []string{
			"feed | Late start |  | ",
			"http://late.example/1 | Late |  | http://late.example/1",
			"reported feed-xml 1",
		}},
		{"links.xml", []string{
			"feed | Links |  | ",
			"http://links.example/news/1 | Relative |  | http://links.example/news/1",
			"http://links.example/2 | Absolute path |  | http://links.example/2",
			"http://links.example/3 | As in Atom, no namespace |  | http://links.example/3",
			"4 | Only Atom's link |  | http://links.example/news/4",
			"http://links.example/6 | Mail |  | http://links.example/6",
			"http://links.example/a%20b/é# | Unusual |  | http://links.example/a%20b/é#",
			"http://links.example/news/50%25-off | Half off |  | http://links.example/news/50%25-off",
			"quarantined | feed-link | 5 | the item has neither a link nor an enclosure that could be taken",
			"quarantined | feed-link | 7 | the item has neither a link nor an enclosure that could be taken",
			"quarantined | feed-link | 9 | the item has neither a link nor an enclosure that could be taken",
			"reported feed-link 4",
		}},
		{"metadata-atom-03.xml", []string{
			"feed | Old log | tag:log.example,2004:1 | 2004-06-02T10:00:00Z",
			"tag:log.example,2004:1.1 | Goleudy | 2004-06-02T10:00:00Z | text/html http://log.example/1",
		}},
		{"metadata-atom-10.atom", []string{
			"feed | Planet | urn:planet | 2025-02-01T00:00:00Z",
			"urn:entry:1 | Hafen | 2025-01-31T00:00:00Z | https://blog.example/1 | https://blog.example/1.en",
		}},
		{"metadata-json.json", []string{
			"feed | Buoys | https://buoys.example/feed.json | ",
			"1 | Boei |  | https://buoys.example/1",
			"2 | Buoy |  | https://buoys.example/2",
			"3 |  |  | https://buoys.example/3",
		}},
		{"metadata-rss-10.rdf", []string{
			"feed | Journal of Rigging |  | ",
			"http://toc.example/1 | On knots |  | http://toc.example/1",
			"http://toc.example/2 | On sails |  | http://toc.example/2",
		}},
		{"metadata-rss-20.xml", []string{
			"feed | Chart room |  | ",
			"https://charts.example/12 | Blatt 12 |  | https://charts.example/12",
			"https://charts.example/13 | Sheet 13 |  | https://charts.example/13",
			"https://charts.example/14 | Feuille 14 |  | https://charts.example/14",
		}},
		{"mismatched-tags.xml", []string{
			"refused | 3:86: <i> is closed by </b>",
		}},
		{"other-xml.xml", []string{
			"refused | 2:1: a sitemap or ResourceSync document <urlset>; want a feed: RSS, Atom or JSON Feed",
		}},
		{"own-entities.xml", []string{
			"refused | 2:1: DOCTYPE is refused, since it can define entities; remove it",
		}},
		{"page-without-feed.html", []string{
			"refused | 1:1: an HTML page, not a feed, and it names no feed: look at the address",
		}},
		{"page.html", []string{
			"refused | 1:1: an HTML page, not a feed; it names http://feeds.example/news.rss?a=1&b=2, http://feeds.example/dir/atom.xml: take that as the Source's URL",
		}},
		{"plain-text.txt", []string{
			`refused | 1:1: neither XML nor JSON, it begins with "404 not found\n"; want a feed`,
		}},
		{"podcast.xml", []string{
			"feed | Voices of the quay |  | ",
			"ep-2 | Episode 2 | 2024-05-03T05:00:00Z | https://voices.example/2 | enclosure audio/mpeg 34216300 https://voices.example/2.mp3 | enclosure audio/ogg http://feeds.example/dir/2.ogg",
			"ep-1 | Episode 1 |  | audio/mpeg 1 https://voices.example/1.mp3",
		}},
		{"rss-090.rdf", []string{
			"feed | Harbour library, news |  | ",
			"http://harbour.example/news/1 | Charts of the estuary |  | http://harbour.example/news/1",
			"http://harbour.example/news/2 | Tide tables |  | http://harbour.example/news/2",
		}},
		{"rss-091-doctype.xml", []string{
			"refused | 2:1: DOCTYPE is refused, since it can define entities; remove it",
		}},
		{"rss-091.xml", []string{
			"feed | Bibliothèque du port |  | ",
			"http://port.example/cafe | Café littéraire |  | http://port.example/cafe",
		}},
		{"rss-092.xml", []string{
			"feed | Reading room |  | ",
			"http://room.example/sound/evening.mp3 |  |  | audio/mpeg 1200345 http://room.example/sound/evening.mp3",
		}},
		{"rss-093.xml", []string{
			"feed | Map room |  | ",
			"http://maps.example/12 | Sheet 12 | 2002-03-05T10:00:00Z | http://maps.example/12",
		}},
		{"rss-094.xml", []string{
			"feed | Map room |  | ",
			"tag:maps.example,2002:13 | Sheet 13 | 2002-03-06T09:00:00Z | http://maps.example/13",
		}},
		{"rss-10-prefixed.rdf", []string{
			"feed | Prefixed |  | ",
			"http://journal.example/3 | On cleats |  | http://journal.example/3",
		}},
		{"rss-10.rdf", []string{
			"feed | Journal of Quays, table of contents |  | ",
			"http://doi.example/10.9/1 | On bollards | 2011-04-28T09:00:00Z | http://journal.example/go?id=1&via=rss",
			"http://doi.example/10.9/2 | On capstans | 2011-04-29T00:00:00Z | http://journal.example/go?id=2&via=rss | via http://origin.example/capstans",
		}},
		{"rss-20-atom-namespace.xml", []string{
			"feed | Mistaken |  | ",
			"m1 | Still an item |  | http://mistaken.example/1",
			"reported feed-namespace 1",
		}},
		{"rss-20-bogus-namespace.xml", []string{
			"feed | Stamped |  | ",
			"s1 | In a namespace |  | http://stamped.example/1",
			"reported feed-namespace 1",
		}},
		{"rss-20-empty.xml", []string{
			"feed | Nothing yet |  | ",
		}},
		{"rss-20-items-outside.xml", []string{
			"feed | Items beside the channel |  | ",
			"http://beside.example/1 | Beside |  | http://beside.example/1",
		}},
		{"rss-20-two-channels.xml", []string{
			"feed | First |  | ",
			"http://two.example/1 | In the first |  | http://two.example/1",
			"http://two.example/2 | In the second |  | http://two.example/2",
		}},
		{"rss-20-upper-case.xml", []string{
			"feed | Loud |  | ",
			"http://loud.example/1 | Shouting | 2025-01-06T08:00:00Z | http://loud.example/1",
		}},
		{"rss-20.xml", []string{
			"feed | Town archive |  | 2025-01-06T08:00:00Z",
			"archive-101 | Letters of the harbour master | 2025-01-05T16:30:00Z | https://archive.example/a/101",
			"https://archive.example/a/100 | Logbook | 2025-01-04T12:00:00Z | https://archive.example/a/100",
		}},
		{"source-of-items.xml", []string{
			"feed | Planet |  | ",
			"http://planet.example/1 | One |  | http://planet.example/1",
			"http://planet.example/2 | Two |  | http://planet.example/2",
			"http://planet.example/3 | Three |  | http://planet.example/3 | via http://c.example/3",
			"http://planet.example/4 | Four |  | http://planet.example/4 | via http://d.example/4",
		}},
		{"titles.xml", []string{
			"feed | Titles of all kinds |  | ",
			"http://titles.example/1 | Big News |  | http://titles.example/1",
			"http://titles.example/2 | Breaking: Big & bigger news |  | http://titles.example/2",
			"http://titles.example/3 | Bold & escaped twice: <i> |  | http://titles.example/3",
			"http://titles.example/4 | if a < b and c > d, List<String> |  | http://titles.example/4",
			"http://titles.example/5 | Naked markup here |  | http://titles.example/5",
			"http://titles.example/6 | Many lines |  | http://titles.example/6",
			"http://titles.example/7 |  |  | http://titles.example/7",
			"http://titles.example/8 | Dublin Core's |  | http://titles.example/8",
			"http://titles.example/9 | First |  | http://titles.example/9",
		}},
		{"trailing-junk.xml", []string{
			"feed | Counter |  | ",
			"http://counter.example/1 | Counted |  | http://counter.example/1",
			"reported feed-xml 1",
		}},
		{"truncated-cdata.xml", []string{
			"refused | 3:92: the document is cut off",
		}},
		{"truncated.xml", []string{
			"refused | 4:21: the document is cut off inside <title>",
		}},
		{"undeclared-prefixes.xml", []string{
			"feed | Undeclared |  | ",
			"http://prefix.example/1 | Undeclared | 2015-02-03T04:05:06Z | http://prefix.example/1",
			"reported feed-namespace 1",
		}},
		{"utf-16-be-unmarked.xml", []string{
			"feed | Sixteen |  | ",
			"http://sixteen.example/2 | Größe |  | http://sixteen.example/2",
		}},
		{"utf-16-le.xml", []string{
			"feed | Sixteen |  | ",
			"http://sixteen.example/1 | Größe |  | http://sixteen.example/1",
		}},
		{"windows-1251.xml", []string{
			"feed | Порт |  | ",
			"http://port.example/ru/1 | Новая карта |  | http://port.example/ru/1",
		}},
	}
}
